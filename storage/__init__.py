"""What a node keeps on disk, in LMDB: the config store of the controller and the spool of the workers."""
