"""Sessions of MQTT: what waits for a client in its queue at the node, and goes to it with QoS 1.

`session` says to the node what its client does; `outgoing` has the messages on their way to it; `unacknowledged`
knows which of them it has not acknowledged, and by which packet identifiers; `credit` how many bytes that may be.
"""
