"""A folder on the path of a router whose turns are to be timed."""
