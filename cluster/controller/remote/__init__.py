"""Administration from other hosts: who may, the side of the controller, and the side of the operator."""
