"""Scheduling: admission of sessions, the server's loop, long polls, semaphores."""
