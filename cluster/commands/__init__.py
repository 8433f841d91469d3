"""The commands of `angarium`, one module per family, imported by `cluster.cli` when it is called."""
