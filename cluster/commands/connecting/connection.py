"""The options by which commands reach a node: as a client of the SDK, or as an operator of the admin API.

Each option has a variable, and a context may have a value for it. Which node a command is about is decided in
`target.py`; here its grounds are gathered: what click parsed and from where, the contexts, the node of the working
directory, the registry of the nodes that run. A secret is read from a file, never from the command line, where every
user of the machine could see it.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.core import ParameterSource

from angarium import errors
from angarium.client.transport.address import DEFAULT_URL, is_encrypted, parse
from cluster.admin.client import Admin
from cluster.commands.connecting import contexts
from cluster.commands.connecting.target import Here, Place, Purpose, Target, choose, named
from cluster.commands.terminal.options import ABOVE_0, FILE, options
from cluster.data import registry
from cluster.data.node_file import NODE_FILE, node_runs, read_node_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from angarium.client.client import Client
    from cluster.admin.http import HttpOperator

    _Function = Callable[..., Any]
    _Decorator = Callable[[_Function], _Function]

DEFAULT_DATA: Final = "angarium-data"
DEFAULT_VPN: Final = "default"
DEFAULT_USER: Final = "default"
#: Long enough for a node under load to answer, short enough that a script notices.
DEFAULT_TIMEOUT_S: Final = 10.0
#: More than the node takes of a token, so that the SDK says what the limit is.
_TOKEN_FILE_MAX: Final = 32_768
#: How long the usual port of this host may take to say whether anybody listens.
_PROBE_TIMEOUT_S: Final = 1.0

#: Whom to trust and who we are, at addresses of TLS.
_TLS_NAMES: Final = ("ca_file", "cert_file", "key_file")
_PLACE_NAMES: Final = {"data", "context", "timeout", *_TLS_NAMES}
#: The parameters that become `ConnectOptions`.
_CLIENT_NAMES: Final = _PLACE_NAMES | {*("url", "vpn", "user", "password_file", "token_file", "client_name")}
#: The parameters that become `AdminOptions`.
_ADMIN_NAMES: Final = _PLACE_NAMES | {
    *("admin_url", "management", "operator", "operator_password_file", "token_file")
}
#: A file that is handed on to other processes.
_resolved: Final = click.Path(exists=True, dir_okay=False, path_type=Path, resolve_path=True)


class Found(NamedTuple):
    """Where the node of a client command is."""

    url: str
    #: File with the authorities to trust there; empty: what the command was given, or those of the system.
    ca_file: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectOptions:
    """How one command reaches the node as a client."""

    #: Looks for the node; called when the address is needed, so that a misused command says so first.
    find: Callable[[], Found]
    vpn: str
    username: str
    password: str | None
    timeout_s: float
    client_name: str
    #: Gives the token to log in with, as it is then; None for none.
    token: Callable[[], str] | None = None
    #: Arguments of `angarium.connect` that are for addresses of TLS.
    tls: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Those of them that come from variables, which are for many commands: they do not count elsewhere.
    variables: frozenset[str] = frozenset()

    @functools.cached_property
    def _found(self) -> Found:
        return self.find()

    @property
    def url(self) -> str:
        """The address of the node.

        Raises:
            AngariumError: there is no node, or nothing says which one is meant.
        """
        return self._found.url

    def arguments(self) -> dict[str, Any]:
        """Give the arguments of `angarium.connect`."""
        names = ("url", "vpn", "username", "password", "timeout_s", "client_name")
        idle = () if is_encrypted(self.url) else self.variables
        own = {"ca_file": self._found.ca_file} if self._found.ca_file else {}
        tls = own | {name: file for name, file in self.tls.items() if name not in idle}
        token = {} if self.token is None else {"token": self.token}
        return {name: getattr(self, name) for name in names} | tls | token

    async def connect(self, **more: Any) -> Client:
        """Connect, with more arguments of `angarium.connect`.

        Raises:
            AngariumError: the node is not there, or refuses.
        """
        import angarium

        # What matters of these warnings the command says itself, in its own words.
        logging.getLogger("angarium").setLevel(logging.ERROR)
        return await angarium.connect(**self.arguments(), **more)


def variable(option: str) -> str:
    """Give the name of the variable of an option: --password-file has ANGARIUM_PASSWORD_FILE."""
    return "ANGARIUM_" + option.removeprefix("--").replace("-", "_").upper()


def option(name: str, *, parameter: str = "", **more: Any) -> _Decorator:
    """Give an option that has a variable, by which scripts and shells set it for many commands.

    Args:
        name: of the option, with its hyphens.
        parameter: what the function calls it, if not the same.
        more: arguments of `click.option`.
    """
    names = [name, parameter] if parameter else [name]
    more["help"] += f"  [env var: {variable(name)}]"
    return click.option(*names, envvar=variable(name), **more)


def check_address(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Refuse what is no address to connect to; a callback of options."""
    try:
        if value:
            parse(value)
    except errors.AngariumError as error:
        text = f"{error.detail}: {error.advice}."
        raise click.BadParameter(text) from None
    return value


def check_admin_address(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse what is no address of a controller likewise."""
    checked = check_address(ctx, option, value)
    if checked and checked.startswith("tcp://"):
        text = f"{checked!r} is no address for operators: write that of [admin] listen of the node, tls://HOST:PORT."
        raise click.BadParameter(text)
    return checked


def check_management(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Refuse what is no address of a management API likewise."""
    if value:
        from cluster.admin.http import address_fault

        if fault := address_fault(value):
            raise click.BadParameter(f"{fault}.")
    return value


#: Add `--data`.
data_option = option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Data directory of the node.  [default: ./{DEFAULT_DATA}]",
)


def _places_options(url_option: _Decorator) -> list[_Decorator]:
    """Give the options that say which node is meant."""
    return [
        url_option,
        option(
            "--data",
            type=click.Path(file_okay=False, path_type=Path),
            help="Data directory of the node, if it runs on this host.  "
            f"[default: ./{DEFAULT_DATA} if it holds a node, else that of the only node that runs]",
        ),
        option("--context", metavar="NAME", help="Context to use.  [default: see 'angarium context use']"),
    ]


#: Add `--timeout`.
timeout_option = option(
    "--timeout",
    type=ABOVE_0,
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    help="Seconds to wait for the node.",
)


def _tls_options(certificate: str, trusted: str = "those of the system") -> list[_Decorator]:
    """Give the options for addresses of TLS: what the certificate is for, and who is trusted if nobody is named."""
    authorities = "File with the authorities that may sign the certificate of a tls:// address (PEM)."
    key = "File with the private key of --cert-file, for your eyes only."
    return [
        option("--ca-file", type=_resolved, help=f"{authorities}  [default: {trusted}]"),
        option("--cert-file", type=_resolved, help=certificate),
        option("--key-file", type=_resolved, help=f"{key}  [default: --cert-file]"),
    ]


def client_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every client command; the function gets them as `connect: ConnectOptions`."""
    url = option(
        "--url", callback=check_address, help="Address of the node.  [default: that of the local node]"
    )
    family = [
        *_places_options(url),
        option("--vpn", default=DEFAULT_VPN, show_default=True, help="Message VPN to join."),
        option("--user", default=DEFAULT_USER, show_default=True, help="Username to connect as."),
        option("--password-file", type=FILE, help="File whose first line is the password."),
        option(
            "--token-file",
            type=FILE,
            help="File whose first line is a token (JWT), read for each connection, instead of a password.",
        ),
        *_tls_options(
            "Certificate of this client, where one is demanded (PEM).",
            "that of its cluster for a local node that has joined one, else those of the system",
        ),
        option("--client-name", default="", help="Name of this client.  [default: chosen by the node]"),
        timeout_option,
    ]

    def command(**values: Any) -> Any:
        given = _Given(values, ("url", "data"))
        tls = _tls_files(given)
        password_file, token_file = _secret_files(given)
        connect = ConnectOptions(
            # A publisher that goes on over restarts may begin before the node is there.
            find=lambda: _find_node(given, waits=bool(values.get("retry_for"))),
            vpn=given.value("vpn"),
            username=given.value("user"),
            password=read_password(password_file),
            token=None if token_file is None else functools.partial(read_token, token_file),
            timeout_s=values["timeout"],
            client_name=values["client_name"],
            tls=tls,
            variables=frozenset(filter(given.is_variable, _TLS_NAMES)),
        )
        return function(connect=connect, **{name: values[name] for name in values.keys() - _CLIENT_NAMES})

    return options(*family)(functools.update_wrapper(command, function))


class _Given:
    """What one command was given, and where each value comes from: an option, a variable, a context, a default."""

    def __init__(self, values: dict[str, Any], places: Sequence[str]) -> None:
        """Find the context that counts.

        Args:
            values: the parameters of the command.
            places: those that name a node.

        Raises:
            AngariumError: a context was named that is not there (40401), or the file of the contexts is damaged.
        """
        self._values = dict(values)
        self._places = places
        self._sources = click.get_current_context().get_parameter_source
        self._name: str = values["context"] or ""
        #: Whether --context names it; then it goes before variables.
        self._is_chosen = self._sources("context") is ParameterSource.COMMANDLINE
        if not self._is_chosen and any(values[place] for place in places):
            # Its password is for its own node.
            self._context = contexts.Context()
        elif self._name:
            self._context = contexts.load(contexts.path()).named(self._name)
        else:
            found = contexts.load(contexts.path())
            self._name = found.current
            self._context = found.context.get(found.current, contexts.Context())

    def is_given(self, name: str) -> bool:
        """Tell whether a parameter was given in a way that goes before the context."""
        source = self._sources(name)
        return source is ParameterSource.COMMANDLINE or (
            source is ParameterSource.ENVIRONMENT and not self._is_chosen
        )

    def is_option(self, name: str) -> bool:
        """Tell whether a parameter was given on the command line."""
        return self._sources(name) is ParameterSource.COMMANDLINE

    def is_variable(self, name: str) -> bool:
        """Tell whether a parameter comes from the environment."""
        return self._sources(name) is ParameterSource.ENVIRONMENT and self.is_given(name)

    def is_default(self, name: str) -> bool:
        """Tell whether the command has an option that was not given in any way."""
        return self._sources(name) is ParameterSource.DEFAULT

    def value(self, name: str) -> Any:
        """Give a parameter: from the command line or a variable, else from the context, else its default."""
        value = self._values[name]
        return value if self.is_given(name) else self.of_context(name) or value

    def file(self, name: str) -> Path | None:
        """Give a parameter that is a file, likewise."""
        if self.is_given(name):
            return Path(self._values[name])
        found = self.of_context(name)
        return Path(found) if found else None

    def of_context(self, name: str) -> str:
        """Give what the context says, empty if it says nothing."""
        return str(getattr(self._context, name))

    def vpn_of_operator(self, default: Any) -> Any:
        """Give the Message VPN of an operator command whose --vpn was not given: it has no variable of its own."""
        variable, of_context = os.environ.get("ANGARIUM_VPN"), self.of_context("vpn")
        return (of_context or variable if self._is_chosen else variable or of_context) or default

    def named(self, purpose: Purpose) -> Target | None:
        """Give the node that is named, running or not; None if none is.

        Raises:
            InvalidRequestError: the context does not name what is needed (40018).
        """
        return named(purpose, self._all_places())

    def find(self, purpose: Purpose, *, waits: bool = False) -> Target | None:
        """Give the node that is meant, None if nothing names one and none runs.

        Raises:
            AngariumError: several run, or the context does not name what is needed (40018); the node of the working
                directory does not run (50308), and the command does not wait for it.
        """
        return choose(purpose, self._all_places(), _here, registry.running_nodes, waits=waits)

    def _all_places(self) -> list[Place]:
        options = self._place("the command line", ParameterSource.COMMANDLINE)
        variables = self._place("the environment", ParameterSource.ENVIRONMENT)
        known = self._context
        context = Place(f"context {self._name!r}", known.url, known.data, known.admin_url, known.management)
        return [options, context, variables] if self._is_chosen else [options, variables, context]

    def _place(self, called: str, source: ParameterSource) -> Place:
        named = {name: str(self._values[name]) for name in self._places if self._sources(name) is source}
        return Place(called, **named)


def own_data_directory() -> Path:
    """Give the data directory of the node to stop if none is named.

    That is the usual one if it is there, running or not: who stops a node twice must not stop another one.

    Raises:
        AngariumError: several run (40018), or none (50308).
    """
    if os.path.exists(os.path.join(DEFAULT_DATA, NODE_FILE)):
        return Path(DEFAULT_DATA)
    target = choose(Purpose.OPERATOR, [], _here, registry.running_nodes)
    if target is None:
        raise _no_node()
    return Path(target.data)


def _here() -> Here | None:
    """Give the node of the working directory, None if none was ever started there.

    Raises:
        InvalidRequestError: its `node.json` cannot be read (40017).
    """
    data = os.path.abspath(DEFAULT_DATA)
    try:
        return Here(data, node_runs(data, read_node_file(data)))
    except errors.UnavailableError:
        return None


def _find_node(given: _Given, *, waits: bool) -> Found:
    """Give the address for a client, and whom to trust there.

    Raises:
        AngariumError: there is no node, or it does not run (50308); its `node.json` cannot be read (40017).
    """
    target = given.find(Purpose.CLIENT, waits=waits)
    if target is None:
        # A node of another user, or in a container, is not in the registry.
        if waits or somebody_listens(DEFAULT_URL):
            return Found(DEFAULT_URL)
        raise _no_node()
    if target.url:
        parse(target.url)
        return Found(target.url)
    node = read_node_file(target.data)
    if not waits and not node_runs(target.data, node):
        advice = f"'angarium up --data {target.data}' starts it"
        raise errors.error_for(errors.NODE_UNREACHABLE, f"the node of {target.data} does not run", advice)
    if not node.url:
        advice = "wait until it is ready: 'angarium up' says so, and --ready-file writes it to a file"
        raise errors.error_for(errors.NODE_UNREACHABLE, f"the node of {target.data} was never ready", advice)
    return Found(node.url, _own_authority(target.data) if is_encrypted(node.url) else "")


def _own_authority(data: str) -> str:
    """Give the file of the authorities of the cluster that a node of this host joined; empty if it has none."""
    from cluster.join.stored import authority_of  # with the configuration, which few commands need

    return str(authority_of(Path(data).absolute()) or "")


def somebody_listens(url: str) -> bool:
    """Tell whether a connection to an address is taken; a socket of this host is not tried."""
    place = parse(url)
    if isinstance(place, str):
        return True
    try:
        socket.create_connection(place, _PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _open_here(data: str, timeout_s: float) -> Admin:
    try:
        return Admin(data, timeout_s=timeout_s)
    except errors.UnavailableError:
        # It brings the configuration along, which few commands need.
        from cluster.standby.pair.settings import read_status

        status = read_status(Path(data))
        if status is None:
            raise
    if status.primary in ("", status.host):
        detail = f"no node runs on {data} yet: host {status.host} of its pair is about to start it, or to end"
        advice = "try again in a moment; 'angarium standby status' shows both hosts"
        raise errors.error_for(errors.NODE_UNREACHABLE, detail, advice)
    detail = f"host {status.host} is the standby, the node runs on host {status.primary}"
    advice = "'angarium standby status' shows both; all else is asked there"
    raise errors.error_for(errors.NODE_UNREACHABLE, detail, advice)


def _no_node() -> errors.AngariumError:
    advice = (
        "'angarium up' starts one; --url, --data or a context names one elsewhere: 'angarium docs connecting'"
    )
    return errors.error_for(errors.NODE_UNREACHABLE, "no node of yours runs on this host", advice)


def _secret_files(given: _Given) -> tuple[Path | None, Path | None]:
    """Give the files of password and token; what is given goes before what the context has of the other kind."""
    password_file, token_file = given.file("password_file"), given.file("token_file")
    if given.is_given("token_file") and not given.is_given("password_file"):
        password_file = None
    elif password_file is not None and not given.is_given("token_file"):
        token_file = None
    return password_file, token_file


def read_token(path: Path) -> str:
    """Read the token that a `--token-file` names.

    Raises:
        InvalidRequestError: it cannot be read or is empty (40017).
    """
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            token = file.readline(_TOKEN_FILE_MAX).strip()
    except OSError as error:
        raise errors.error_for(errors.INVALID_CONFIGURATION, f"token file {path}: {error.strerror}") from None
    if not token:
        raise errors.error_for(errors.INVALID_CONFIGURATION, f"token file {path}: its first line is empty")
    return token


def read_password(path: Path | None) -> str | None:
    """Read the password that a `--password-file` names, if one does.

    Raises:
        InvalidRequestError: it cannot be read or is empty (40017).
    """
    if path is None:
        return None
    from cluster.configuration.config import read_password_file

    return read_password_file(path)


def _tls_files(given: _Given) -> dict[str, str]:
    """Give the files for addresses of TLS that are named.

    Others who may use the private key are told of here, as the SDK would in its log, which is silent in commands.
    """
    files = {name: str(file) for name in _TLS_NAMES if (file := given.file(name))}
    key = files.get("key_file") or files.get("cert_file")
    if key is not None:
        from angarium.client.transport.credentials import exposed

        if warning := exposed(key):
            click.echo(f"warning: {warning}", err=True)
    return files


class AdminOptions:
    """How one command reaches the controller of a node; it is looked for when it is needed."""

    def __init__(self, given: _Given, timeout_s: float) -> None:
        self._given = given
        self._timeout_s = timeout_s

    @functools.cached_property
    def admin_url(self) -> str:
        """The address of the controller, if one is named and not a data directory."""
        named = self._given.named(Purpose.OPERATOR)
        return named.url if named else ""

    @functools.cached_property
    def data(self) -> Path:
        """The data directory that is named, else the usual one: what a command works on without a node."""
        named = self._given.named(Purpose.OPERATOR)
        return Path(named.data if named and named.data else DEFAULT_DATA)

    @functools.cached_property
    def _operator(self) -> HttpOperator:
        """As whom to log in at a management API; a password is asked for once."""
        return _http_operator(self._given)

    def open(self) -> Admin:
        """Connect to the controller.

        Raises:
            AngariumError: no node runs there, or keys are missing.
        """
        if not self.admin_url:
            target = self._given.find(Purpose.OPERATOR)
            if target is None:
                raise _no_node()
            return _open_here(target.data, self._timeout_s)
        files = _tls_files(self._given)
        if self.admin_url.startswith("http"):
            return Admin(
                admin_url=self.admin_url, operator=self._operator, timeout_s=self._timeout_s, **files
            )
        parse(self.admin_url)
        return Admin(admin_url=self.admin_url, timeout_s=self._timeout_s, operator=None, **files)

    def call(self, operation: str, **arguments: Any) -> Any:
        """Connect, have one operation done, and give its answer.

        Raises:
            AngariumError: what `open` and the operation raise.
        """
        with self.open() as admin:
            return admin.call(operation, **arguments)


def _http_operator(given: _Given) -> HttpOperator:
    """Give as whom to log in at a management API.

    A token and a password come from files, and of both the one that is named on the command line. A token may be for
    the client commands too, so it does not count where an operator is named.

    Raises:
        InvalidRequestError: that is not said, or in two ways (40018), or a file cannot be read (40017).
    """
    from cluster.admin.http import HttpOperator

    name, password_file = given.value("operator"), given.file("operator_password_file")
    token_file = given.file("token_file")
    if given.is_option("token_file") and (
        given.is_option("operator") or given.is_option("operator_password_file")
    ):
        raise errors.invalid(
            "--token-file says who you are", "leave out --operator and --operator-password-file"
        )
    if token_file is not None and (given.is_option("token_file") or not name):
        return HttpOperator(token=functools.partial(read_token, token_file))
    if name and password_file is not None:
        return HttpOperator(name, read_password(password_file) or "")
    if name and sys.stdin.isatty() and not click.get_current_context().resilient_parsing:
        return HttpOperator(name, click.prompt(f"Password of operator {name}", hide_input=True, err=True))
    if given.file("cert_file") is not None and not name:
        return HttpOperator()
    advice = (
        "name one with --operator and --operator-password-file, or show a token (--token-file) or a certificate"
        " (--cert-file); a context has all of them, and on a terminal the password is asked for"
    )
    raise errors.invalid("a management API needs an operator", advice)


def admin_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every operator command; the function gets them as `admin: AdminOptions`."""
    url = option(
        "--admin-url", callback=check_admin_address, help="Address of a remote controller, instead of --data."
    )
    family = [
        *_places_options(url),
        option(
            "--management",
            callback=check_management,
            help="Address of a management API, http://host:port or https://host:port, instead of --data.",
        ),
        option("--operator", help="Operator to log in as at --management."),
        option(
            "--operator-password-file",
            type=FILE,
            help="File whose first line is the operator's password.  [default: asked for on a terminal]",
        ),
        option(
            "--token-file",
            type=FILE,
            help="File whose first line is a token (JWT) to log in with at --management instead.",
        ),
        *_tls_options("Certificate that says who you are, for --admin-url and --management (PEM)."),
        timeout_option,
    ]

    def command(**values: Any) -> Any:
        admin, vpn = operator_of(values, values["timeout"])
        others = {name: values[name] for name in values.keys() - _ADMIN_NAMES}
        if "vpn" in values:
            others["vpn"] = vpn
        return function(admin=admin, **others)

    return options(*family)(functools.update_wrapper(command, function))


def operator_of(values: dict[str, Any], timeout_s: float) -> tuple[AdminOptions, Any]:
    """Give how an operator command reaches the controller, and the Message VPN that it is about.

    Args:
        values: its parameters, or those that are there when a command line is completed.
        timeout_s: how long it waits for an answer.
    """
    places = ("admin_url", "management", "data")
    given = _Given({**dict.fromkeys(_ADMIN_NAMES), **values}, places)
    vpn = values.get("vpn")
    if given.is_default("vpn"):
        vpn = given.vpn_of_operator(vpn)
    return AdminOptions(given, timeout_s), vpn
