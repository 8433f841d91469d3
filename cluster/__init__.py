"""What makes processes a node and nodes a cluster: supervisor, controller, configuration, the command."""
