"""Commands about a node, its cluster, and `angarium` itself."""
