"""The console: the page for operators, as files that the management process gives to browsers."""
