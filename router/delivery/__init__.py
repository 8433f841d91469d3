"""From a retired round to the wire: choice, eliding, and the queues of slow clients."""
