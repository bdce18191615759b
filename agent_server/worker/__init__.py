"""One session from start to finish, in a process of its own."""
