"""The agent: samples a node on a fixed grid, says whose each figure is, and shows it to Prometheus."""
