"""From PUBLISH to its receivers' filters: rounds and their order, workers and what they know."""
