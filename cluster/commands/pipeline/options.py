"""The options that commands of the pipeline share: where Spark runs, and with what; and where the node is.

What the format "angarium" wants to know of the node it is told here, in its words.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from typing import TYPE_CHECKING, Any

import click

from angarium.pipeline.session import DEFAULT_MASTER, SparkSettings
from cluster.commands.connection import ConnectOptions, client_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


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


def node_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of client commands but for a client name, of which a job has many.

    The function gets them as `node: dict[str, str]`, options of the format "angarium".
    """

    def command(*, connect: ConnectOptions, **values: Any) -> Any:
        return function(node=node_settings(connect), **values)

    with_name = client_options(functools.update_wrapper(command, function))

    def nameless(**values: Any) -> Any:
        return with_name(client_name="", **values)

    wrapped = functools.update_wrapper(nameless, with_name)
    parameters: list[click.Parameter] = with_name.__click_params__  # type: ignore[attr-defined]
    wrapped.__click_params__ = [one for one in parameters if one.name != "client_name"]  # type: ignore[attr-defined]
    return wrapped


def node_settings(connect: ConnectOptions) -> dict[str, str]:
    """Give the options of the format "angarium" that say where the node is."""
    found = {
        "url": connect.url,
        "vpn": connect.vpn,
        "username": connect.username,
        "timeoutSeconds": f"{connect.timeout_s:g}",
    }
    if connect.password is not None:
        found["password"] = connect.password
    if connect.server_key is not None:
        found["serverKey"] = connect.server_key
    return found


@contextlib.contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """Give an event that the first SIGINT or SIGTERM sets; a second one acts as usual.

    To be entered when Spark runs: it has a handler of its own, which ends everything at once.
    """
    stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM)

    def handle(_number: int, _frame: object) -> None:
        stop.set()
        for number in signals:
            signal.signal(number, usual[number])

    usual = {number: signal.getsignal(number) for number in signals}
    for number in signals:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number in signals:
            signal.signal(number, usual[number])
