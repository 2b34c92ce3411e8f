"""Never lose work: what is saved (state), as which files (files), when (saver), and for whom (identity, resume)."""
