"""Configuration of a run: schema, file, checks."""
