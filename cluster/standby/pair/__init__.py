"""What a pair of hosts is: who is the primary and until when, what processes are told of it, what it says of itself."""
