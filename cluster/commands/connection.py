"""The options by which commands reach a node: as a client of the SDK, or as an operator of the admin API.

Where the address comes from, first found wins: `--url`, `ANGARIUM_URL`, the `node.json` that a node keeps in
its data directory (`--data`, `ANGARIUM_DATA`, `./angarium-data`), and `tcp://127.0.0.1:55555`. A secret is
read from a file, never from the command line, where every user of the machine could see it.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from angarium import errors
from cluster.admin import Admin, read_node_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium.client.client import Client

    _Function = Callable[..., Any]
    _Decorator = Callable[[_Function], _Function]

DEFAULT_URL: Final = "tcp://127.0.0.1:55555"
DEFAULT_DATA: Final = "angarium-data"
#: Long enough for a node under load to answer, short enough that a script notices.
DEFAULT_TIMEOUT_S: Final = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """How one command reaches the node as a client."""

    url: str
    vpn: str
    username: str
    password: str | None
    server_key: str | None
    timeout_s: float
    client_name: str

    def arguments(self) -> dict[str, Any]:
        """Give the arguments of `angarium.connect`."""
        return dataclasses.asdict(self)

    async def connect(self, **more: Any) -> Client:
        """Connect, with more arguments of `angarium.connect`.

        Raises:
            AngariumError: the node is not there, or refuses.
        """
        import angarium

        # What matters of these warnings the command says itself, in its own words.
        logging.getLogger("angarium").setLevel(logging.ERROR)
        return await angarium.connect(**self.arguments(), **more)


def data_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--data`."""
    return click.option(
        "--data",
        envvar="ANGARIUM_DATA",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"Data directory of the node (ANGARIUM_DATA).  [default: ./{DEFAULT_DATA}]",
    )(function)


def timeout_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--timeout`."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=DEFAULT_TIMEOUT_S,
        show_default=True,
        help="Seconds to wait for the node.",
    )(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`, which the function gets as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, also on a terminal.")(function)


def client_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every client command; the function gets them as `connect: ConnectOptions`."""
    readable = click.Path(exists=True, dir_okay=False, path_type=Path)
    options: list[_Decorator] = [
        click.option(
            "--url", envvar="ANGARIUM_URL", help="Address of the node (ANGARIUM_URL).  [default: local node]"
        ),
        data_option,
        click.option("--vpn", default="default", show_default=True, help="Message VPN to join."),
        click.option("--user", default="default", show_default=True, help="Username to connect as."),
        click.option("--password-file", type=readable, help="File whose first line is the password."),
        click.option(
            "--server-key-file", type=readable, help="File with the public key of the node (CURVE)."
        ),
        click.option(
            "--client-name", default="", help="Name of this client.  [default: the node makes one up]"
        ),
        timeout_option,
    ]

    def command(**values: Any) -> Any:
        data = values.pop("data")
        connect = ConnectOptions(
            url=values.pop("url") or find_url(data),
            vpn=values.pop("vpn"),
            username=values.pop("user"),
            password=read_password(values.pop("password_file")),
            server_key=_public_key(values.pop("server_key_file")),
            timeout_s=values.pop("timeout"),
            client_name=values.pop("client_name"),
        )
        return function(connect=connect, **values)

    return _with_options(options, functools.update_wrapper(command, function))


def find_url(data: Path | None) -> str:
    """Give the address of the node of a data directory; without one, of the node that is most likely meant.

    Raises:
        AngariumError: a data directory was named, but no node was started on it (50308); or its `node.json`
            cannot be
            read (40017).
    """
    try:
        url = read_node_file(data or DEFAULT_DATA).url
    except errors.UnavailableError:
        if data is None:
            return DEFAULT_URL
        raise
    if not url:
        raise errors.error_for(errors.NODE_UNREACHABLE, f"the node of {data or DEFAULT_DATA} was never ready")
    return url


def read_password(path: Path | None) -> str | None:
    """Read the password that a `--password-file` names, if one does.

    Raises:
        InvalidRequestError: it cannot be read or is empty (40017).
    """
    if path is None:
        return None
    from cluster.config import read_password_file

    return read_password_file(path)


def _public_key(path: Path | None) -> str | None:
    if path is None:
        return None
    from cluster.keys import read_public

    return read_public(path)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions:
    """How one command reaches the controller of a node."""

    data: Path
    admin_url: str | None
    server_key: str
    key_file: Path | None
    timeout_s: float

    def open(self) -> Admin:
        """Connect to the controller.

        Raises:
            AngariumError: no node runs there, or keys are missing.
        """
        if self.admin_url is None:
            return Admin(self.data, timeout_s=self.timeout_s)
        return Admin(
            admin_url=self.admin_url,
            server_key=self.server_key,
            key_file=self.key_file,
            timeout_s=self.timeout_s,
        )

    def call(self, operation: str, **arguments: Any) -> Any:
        """Connect, have one operation done, and give its answer.

        Raises:
            AngariumError: what `open` and the operation raise.
        """
        with self.open() as admin:
            return admin.call(operation, **arguments)


def admin_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every operator command; the function gets them as `admin: AdminOptions`."""
    readable = click.Path(exists=True, dir_okay=False, path_type=Path)
    options: list[_Decorator] = [
        data_option,
        click.option("--admin-url", help="Address of a far controller, instead of --data."),
        click.option("--server-key-file", type=readable, help="Public key of the far controller."),
        click.option("--key-file", type=readable, help="Secret key of this operator, for --admin-url."),
        timeout_option,
    ]

    def command(**values: Any) -> Any:
        admin = AdminOptions(
            data=values.pop("data") or Path(DEFAULT_DATA),
            admin_url=values.pop("admin_url"),
            server_key=_public_key(values.pop("server_key_file")) or "",
            key_file=values.pop("key_file"),
            timeout_s=values.pop("timeout"),
        )
        return function(admin=admin, **values)

    return _with_options(options, functools.update_wrapper(command, function))


def _with_options(options: Sequence[_Decorator], function: _Function) -> _Function:
    """Add options so that `--help` lists them in the order in which they are written."""
    for option in reversed(options):
        function = option(function)
    return function
