"""The process in which clients of MQTT are: its role, and the shell around what `gateway` decides."""
