"""`angarium pipeline`: the jobs on Spark as commands. What they do is in `angarium.pipeline`."""
