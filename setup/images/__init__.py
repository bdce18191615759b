"""The images that task rows name, from an OCI registry into R2E_SIF_DIR: `python -m setup.images --help`."""
