"""What a batch system knows of its jobs, in its own words, behind one interface."""
