"""One file per source of the kernel, and one line each in `table.py`."""
