"""The commands of `angarium`, one module per family, imported by `cluster.commands.cli` when it is called."""
