"""Samples in a server that speaks PromQL."""
