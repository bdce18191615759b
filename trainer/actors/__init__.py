"""What holds and updates the trained weights."""
