"""A queue that sessions share with QoS 1 and 2: real clients of gateways, a real lane, and the death of each part."""
