"""A folder on the path of a worker that is to die when it starts."""
