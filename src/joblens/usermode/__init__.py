"""Without root and without a server: agents on every host of a job, started and ended with it."""
