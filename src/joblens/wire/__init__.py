"""Formats and protocols between agents, hubs and Prometheus, and their authentication."""
