"""Jobs on Spark around an archive of messages: archive, replay, report and compare.

Each job is a module with one function that takes a Spark session and says what it did. `angarium.pipeline.session`
starts Spark, `angarium.pipeline.archives` knows how an archive looks on disk. The commands `angarium pipeline ...`
call these functions, and so may any program of yours.

What is here runs in other people's processes: it knows the client SDK and `angarium.spark`, and none of the servers.
PySpark is imported when a session is opened, so that this package can be imported without it.
"""
