"""The kinds of processes that a node consists of, as data: one table, read by all that start, watch or show them."""
