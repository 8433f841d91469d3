"""The options that all commands of the pipeline share: where Spark runs, and with what."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from angarium.pipeline.session import DEFAULT_MASTER, SparkSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def spark_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--master` and `--conf`; the function gets them as `spark: SparkSettings`."""

    def command(**values: Any) -> Any:
        conf = dict(values.pop("conf"))
        return function(spark=SparkSettings(master=values.pop("master"), conf=conf), **values)

    command = functools.update_wrapper(command, function)
    command = click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_pairs,
        help="Setting of Spark, as spark.executor.memory=4g. Repeatable.",
    )(command)
    return click.option(
        "--master",
        metavar="MASTER",
        help="Where Spark runs: local[N], spark://HOST:7077, yarn, k8s://https://HOST:PORT. "
        f" [default: what spark-submit says, else {DEFAULT_MASTER}]",
    )(command)


def _pairs(_ctx: click.Context, _option: click.Parameter, texts: Iterable[str]) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.BadParameter(f"'{text}' is no setting of Spark; write spark.NAME=VALUE")
        pairs.append((key, value))
    return pairs
