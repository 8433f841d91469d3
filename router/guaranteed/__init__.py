"""What the router knows of endpoints: what exists, who may use it, and the lanes that each has at its homes.

Flows are in `router.flows`, producers in `router.publishers`, admission and the streams to the homes in
`router.admission`.
"""
