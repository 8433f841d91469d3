"""The supervisor process, `angarium up`: starts the processes of a node, watches them, stops them in order."""
