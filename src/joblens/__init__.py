"""joblens: see what a job really did, from one thread to the whole cluster."""

__version__ = "0.1.0"
