"""SUBSCRIBE and UNSUBSCRIBE: what a client may subscribe to, the steps in which it is done, and the alarms."""
