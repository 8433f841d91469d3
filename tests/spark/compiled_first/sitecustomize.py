"""Has Spark's Python workers import the PySpark that is installed, which is compiled.

Spark puts an archive of the same source first, and nothing of an archive is ever kept compiled: two thirds of the CPU
time in which a worker starts went into compiling it.
"""

from __future__ import annotations

import sys

sys.path.sort(key=lambda path: path.endswith(".zip"))
