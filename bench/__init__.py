"""Benchmarks of joblens and comparable tools: `python -m bench`. README.md describes the method."""
