"""The Spark source and sink with a real Spark."""
