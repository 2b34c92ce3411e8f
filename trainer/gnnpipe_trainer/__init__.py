"""What runs in the pods, and the command line."""
