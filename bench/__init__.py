"""Side by side with what people would use instead: `python -m bench`. README.md says how it measures."""
