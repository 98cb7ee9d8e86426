"""Jobs of a batch system: followed while they wait and run, and made into records when they have ended."""
