"""The rules that make findings, one module per family."""
