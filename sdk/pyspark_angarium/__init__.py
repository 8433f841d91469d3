"""Where PySpark finds `format("angarium")`: it looks for a `DefaultSource` in modules named `pyspark_...`.

Nobody else imports this; `angarium.spark` is the package.
"""

from __future__ import annotations

from angarium.spark.datasource import AngariumDataSource as DefaultSource

__all__ = ["DefaultSource"]
