"""Messages with QoS 2 both ways: real clients of gateways, a model of the node, and the death of each part."""
