"""The index of job records."""
