"""Which of two nodes is the primary: the lease, the in-sync set, and the outside store that has both."""
