"""The frames between the processes of a node: one struct each, for both ends and for the tables of docs/."""
