"""The messages of a lane, without those who consume them: their index in memory, their states, and their times.

A message is a row of a segment; the backlog of a lane has its segments. What lanes do with messages is in
`node.endpoints`, where their bodies are in `node.home`.
"""
