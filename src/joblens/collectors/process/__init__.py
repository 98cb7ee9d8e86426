"""Processes and their threads."""
