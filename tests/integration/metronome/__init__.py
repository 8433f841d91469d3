"""An example of a kind of process: it beats, and says how often it did. `test_process_kind.py` puts it into a node."""
