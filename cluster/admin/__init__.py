"""The client of the admin API: on the host of the node, and from other hosts."""
