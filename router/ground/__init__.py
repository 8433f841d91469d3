"""What every floor of the router stands on: configuration, counters, and the effects that the shell carries out."""
