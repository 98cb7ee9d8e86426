"""Which job does a process or cgroup belong to, and what has each job used so far?"""
