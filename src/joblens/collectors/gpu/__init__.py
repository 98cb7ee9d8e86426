"""GPUs of all vendors."""
