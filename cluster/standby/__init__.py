"""The standby: a second host that has everything which was acknowledged, and takes over."""
