"""Matching in a worker: batches of rows, the topics in them, and the filters that the topics match.

`worker` is the state machine, the others are parts of it. It knows neither sessions nor endpoints.
"""
