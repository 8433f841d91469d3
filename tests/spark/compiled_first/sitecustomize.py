"""Has Spark's Python workers import the PySpark that is installed, which is compiled, and our data source once.

Spark puts an archive of the same source first, and nothing of an archive is ever kept compiled: two thirds of the CPU
time in which a worker starts went into compiling it. Each worker is a fork of a daemon; half of the rest went into
importing the data source, again in each.
"""

from __future__ import annotations

import sys

sys.path.sort(key=lambda path: path.endswith(".zip"))

if "pyspark.daemon" in sys.orig_argv:
    import angarium.spark.datasource  # noqa: F401 - for the forks
