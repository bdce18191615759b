"""Task rows from a dataset hub, in the folder that the agent server reads."""
