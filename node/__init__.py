"""The worker process of a node: it matches the topics that hash to it."""
