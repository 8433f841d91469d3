"""The number of workers, and which of them is the home of what."""
