"""One source of the kernel's is one file here, and one line in `table.py`."""
