"""What a fresh machine needs: packages, Apptainer, the demo tasks and their image, the demo model."""
