"""Pure functions on tensors: advantages and losses."""
