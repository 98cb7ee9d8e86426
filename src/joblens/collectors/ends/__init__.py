"""Ends of processes and threads as the kernel reports them to root, over netlink."""
