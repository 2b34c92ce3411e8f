"""What history does to training: measured, told, and kept from doing harm."""
