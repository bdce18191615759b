"""SQLite store of sessions, leases and events: the only place of the server's state."""
