"""Cgroups (v2) of sandboxes."""
