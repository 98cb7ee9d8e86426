"""From samples to rates, timelines and windows."""
