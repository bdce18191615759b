"""The demo: a small repository with bugs as tasks, its image, and a warm-started model."""
