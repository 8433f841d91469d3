"""The process in which clients of HTTP are: its role, and the shell around what `gateway` decides."""
