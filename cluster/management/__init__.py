"""The management process: the admin API over HTTP."""
