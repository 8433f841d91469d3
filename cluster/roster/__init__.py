"""Which kinds of processes a node consists of: one table, read by all that start, watch or show them."""
