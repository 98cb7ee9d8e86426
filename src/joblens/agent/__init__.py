"""The agent: samples a node on a fixed grid, attributes the samples to jobs, serves and sends them."""
