"""The home of lanes in a worker: what is stored where, when it is written, and who gets it.

`home` is the state machine; the other modules are its parts. `node.endpoints` has the lanes themselves.
"""
