"""HTTP in, HTTP out; no logic."""
