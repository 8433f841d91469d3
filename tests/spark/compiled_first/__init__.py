"""What Python imports at its start where tests on Spark have put it on the path."""
