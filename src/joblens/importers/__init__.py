"""What other systems have collected, into the lake."""
