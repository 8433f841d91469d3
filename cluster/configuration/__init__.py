"""What is configured: the file of a node, its sections, and what makes a configuration unsafe."""
