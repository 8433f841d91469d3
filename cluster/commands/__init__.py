"""The commands of `angarium`, one module per family; `cluster.cli` imports a module when its command is called."""
