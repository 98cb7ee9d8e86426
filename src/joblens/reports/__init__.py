"""Reports: the plain data of a job, shown."""
