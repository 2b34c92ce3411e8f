"""The pipeline: schedules as data, this rank's blocks, and its channels to the other ranks."""
