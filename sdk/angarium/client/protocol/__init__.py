"""What a client says to its node and hears from it: state machines, frames in and events out, without I/O."""
