"""The options that commands of the pipeline share: where Spark runs, and with what; and where the node is.

What the format "angarium" wants to know of the node it is told here, in its words.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from angarium import blocking, errors
from angarium.pipeline.session import DEFAULT_MASTER, SparkSettings
from cluster.commands.connecting.connection import ConnectOptions, client_options, somebody_listens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

#: Arguments of `angarium.connect` for TLS, in the words of the format.
_TLS_OPTIONS: Final = {"ca_file": "caFile", "cert_file": "certFile", "key_file": "keyFile"}
#: Why somebody may not look into a queue that he may send to.
_SENDS_ONLY: Final = frozenset({errors.PERMISSION_DENIED, errors.GUARANTEED_RECEIVE_DENIED})


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

    The function gets them as `node: NodeSettings`. The node is looked for when it reads them: not every job needs one.
    """

    def command(*, connect: ConnectOptions, **values: Any) -> Any:
        return function(node=NodeSettings(connect), **values)

    with_name = client_options(functools.update_wrapper(command, function))

    def nameless(**values: Any) -> Any:
        return with_name(client_name="", **values)

    wrapped = functools.update_wrapper(nameless, with_name)
    parameters: list[click.Parameter] = with_name.__click_params__  # type: ignore[attr-defined]
    wrapped.__click_params__ = [one for one in parameters if one.name != "client_name"]  # type: ignore[attr-defined]
    return wrapped


class NodeSettings(Mapping[str, str]):
    """The options of the format "angarium" that say where the node is, found when they are read."""

    def __init__(self, connect: ConnectOptions) -> None:
        self._connect = connect

    @functools.cached_property
    def _found(self) -> dict[str, str]:
        return node_settings(self._connect)

    def __getitem__(self, name: str) -> str:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def node_settings(connect: ConnectOptions) -> dict[str, str]:
    """Give the options of the format "angarium" that say where the node is."""
    found = {
        "url": connect.url,
        "vpn": connect.vpn,
        "username": connect.username,
        "timeoutSeconds": f"{connect.timeout_s:g}",
    }
    if connect.token is not None:
        raise click.UsageError("jobs on Spark log in with a password: give --password-file.")
    if connect.password is not None:
        found["password"] = connect.password
    arguments = connect.arguments()
    found |= {option: arguments[name] for name, option in _TLS_OPTIONS.items() if name in arguments}
    return found


def check_sources(node: Mapping[str, str], queues: Iterable[str]) -> None:
    """Ask the node whether a job can read queues, before Spark starts, which takes many seconds.

    Raises:
        AngariumError: nobody listens there, the node refuses this user, or a queue is unknown or not for this user.
    """
    with _connect(node) as client:
        for queue in queues:
            client.positions(queue)


def check_target(node: Mapping[str, str], queue: str | None) -> None:
    """Ask the node likewise whether there is a queue to send to; None for topics.

    Raises:
        AngariumError: nobody listens there, the node refuses this user, or the queue is unknown.
    """
    with _connect(node) as client:
        try:
            if queue is not None:
                client.positions(queue)
        except errors.AngariumError as error:
            if error.code not in _SENDS_ONLY:
                raise


def _connect(node: Mapping[str, str]) -> blocking.Client:
    url = node["url"]
    # A client would try again and again: the node may be starting.
    if not somebody_listens(url):
        raise errors.error_for(errors.CONNECT_FAILED, f"{url}: nobody listens there")
    # What matters of these warnings the command says itself, in its own words.
    logging.getLogger("angarium").setLevel(logging.ERROR)
    return blocking.connect(
        url,
        vpn=node["vpn"],
        username=node["username"],
        password=node.get("password"),
        ca_file=node.get("caFile"),
        cert_file=node.get("certFile"),
        key_file=node.get("keyFile"),
        timeout_s=float(node["timeoutSeconds"]),
    )


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
