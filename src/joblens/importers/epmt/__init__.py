"""Job archives of EPMT, as `epmt stage` writes them."""
