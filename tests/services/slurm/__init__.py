"""Tests against a real Slurm cluster."""
