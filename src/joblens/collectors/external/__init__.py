"""Scripts of a site as collectors."""
