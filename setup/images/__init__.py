"""Images of the task rows, from an OCI registry into R2E_SIF_DIR: `python -m setup.images --help`."""
