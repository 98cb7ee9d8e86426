"""Exact records of processes and threads at their end."""
