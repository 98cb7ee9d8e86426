"""From samples to what they mean: plain data, which every report shows."""
