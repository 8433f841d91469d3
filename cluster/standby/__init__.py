"""The standby: a second host that has everything which was acknowledged, and takes over.

`cluster.standby.outside` is what the outside store knows, `cluster.standby.member` what one host makes of it.
"""
