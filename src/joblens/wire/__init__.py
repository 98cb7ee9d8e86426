"""What passes between agents, hubs and Prometheus, and how it is proved who sends it."""
