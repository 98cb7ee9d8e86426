"""The real `joblens run`: truth, exit codes, signals, terminals, and what happens when joblens fails."""
