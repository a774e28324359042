"""Build jobs: kept in SQLite, each run by a process of its own."""
