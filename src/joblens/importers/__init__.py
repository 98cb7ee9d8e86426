"""Import of data that other systems collected."""
