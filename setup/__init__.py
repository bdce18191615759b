"""Set-up of a fresh machine: packages, Apptainer, task rows, images, the demo, and the check of a node."""
