"""Never lose work: what is saved (state, parts), where (folder), when (saver), and for whom (identity, resume)."""
