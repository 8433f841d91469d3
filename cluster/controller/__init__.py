"""The controller process: objects, the admin API, events and reports."""
