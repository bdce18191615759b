"""Read-only layers under sandboxes: what is the same for every session of a row, made once."""
