"""What all processes of a node share."""
