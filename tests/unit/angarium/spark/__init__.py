"""What the Spark source and sink decide, without a Spark session."""
