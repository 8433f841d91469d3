"""The commands of `angarium`: `cli.py` finds the one that was asked for, in a folder for each family."""
