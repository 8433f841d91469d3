"""What a kind of process is, as data. `cluster.roster` has those that there are."""
