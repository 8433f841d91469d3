"""What operators ask of a home, and the jobs that take a while."""
