"""What a node keeps on its host: data directory, runtime directory, and the list of nodes that run."""
