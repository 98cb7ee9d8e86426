"""Where the hub's data goes: one file each."""
