"""Control groups (v2) of sandboxes."""
