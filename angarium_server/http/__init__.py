"""HTTP servers of a node: listeners and their limits, bodies, refusals; it knows no operator, message or topic."""
