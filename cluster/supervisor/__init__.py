"""The supervisor process, `angarium up`: prepares a node, starts its processes, watches them, and stops them in order."""
