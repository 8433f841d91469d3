"""The tests, one folder for each kind, and what several kinds use."""
