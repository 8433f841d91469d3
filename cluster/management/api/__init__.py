"""What can be asked for under /api/v1: paths, pages of lists, answers."""
