"""The job that a process, cgroup or GPU belongs to, and the usage of each job so far."""
