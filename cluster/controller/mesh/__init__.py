"""The view that a node has of its cluster: what nodes tell each other, and what is wrong with the mesh."""
