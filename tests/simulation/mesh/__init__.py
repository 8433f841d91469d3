"""Several nodes and the links between them."""
