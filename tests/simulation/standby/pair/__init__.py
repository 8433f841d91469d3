"""What decides: groups and which of them count, the lease and who is in sync; no I/O, and nothing of the simulation."""
