"""The outside store as a service: etcd, a Lease of Kubernetes, or a file that the operator changes; and who asks it.

`cluster.standby.stores.opening` gives the store that is configured, and `cluster.standby.stores.keeper` keeps the
member of one host going with it. Nothing in `cluster.standby` itself imports from here.
"""
