"""An archive on disk: files of messages by hour, the journal that says which count, and what is done to them."""
