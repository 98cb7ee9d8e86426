"""The vocabulary of joblens, and the one interface to the machine."""
