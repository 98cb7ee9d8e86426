"""Job records in PostgreSQL."""
