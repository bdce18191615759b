"""SQLite: sessions, leases, events. The truth lives here, not in anybody's memory."""
