"""Client processes, their groups, and the samples they bring back."""
