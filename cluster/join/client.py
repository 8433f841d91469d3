"""The side that joins, or leaves: what `angarium up --join` does before the node starts, and `angarium cluster leave`.

First the certificate of the node at the address is compared with the token; before that nothing is said. Then JOIN
goes there. What comes back is on disk before anything else is done; from then on the node is in the cluster, whatever
becomes of the rest: the other nodes are asked for their side of the link, and those that could not be are named.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from angarium import errors, wire
from angarium.client.transport.credentials import Credentials
from angarium_server.connections.addresses import has_open_port, host_and_port, is_tls, reachable
from cluster.admin.remote import RemoteTransport
from cluster.configuration.config import NodeConfig, load_config
from cluster.data.data_dir import in_use
from cluster.data.node_file import NodeFile, node_runs, read_node_file
from cluster.join import stored, tokens
from cluster.join.frames import Admission, Neighbour, Wish, prove
from cluster.join.parting import empty

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.admin.client import Admin

#: How long the node through which a host joins is waited for; and each other one, of which there may be many.
JOIN_TIMEOUT_S: Final = 20.0
MEMBER_TIMEOUT_S: Final = 5.0
_DEFAULT: Final = NodeConfig()
_ADDRESS: Final = (
    "write --join as 'angarium cluster token' printed it; --address there names another way to the node"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """What `up --join` was asked."""

    url: str
    token: str
    data_dir: Path
    config_file: str | None = None
    listen: tuple[str, ...] = ()
    #: By which others reach this node; empty: follows from where it listens.
    addresses: tuple[str, ...] = ()
    cert_file: str = ""
    key_file: str = ""
    #: Told of each thing that is left to do.
    on_warning: Callable[[str], None]


def join(options: JoinOptions) -> stored.Joined:
    """Join a cluster, unless this node did so before, and give how.

    Raises:
        AngariumError: why not; then nothing has changed here, and the same call can be repeated.
    """
    token = tokens.read(options.token)
    if not is_tls(options.url):
        raise errors.invalid(f"--join {options.url}: write tls://HOST:PORT")
    config = load_config(options.config_file)
    node = _name_of(options.data_dir, config)
    own = options.cert_file or config.router.tls_cert_file, options.key_file or config.router.tls_key_file
    joined = stored.read(options.data_dir)
    if joined is not None:
        _refuse_another(joined, token.fingerprint.hex())
        # Whoever was interrupted before its node started knows not whom it has told: to hear it again is harmless.
        others = [one for one in stored.neighbours(options.data_dir) if one.node != joined.through]
        tell_members(options.data_dir, joined, "join", others, own, options.on_warning)
        return joined
    if config.cluster.secret_file:
        detail = f"{options.config_file} sets cluster.secret_file: this node is in a cluster already"
        raise errors.error_for(errors.OBJECT_EXISTS, detail, "take the line out, or start it without --join")
    with _Talk(options.url, _trusting_all(), advice=_ADDRESS, timeout_s=JOIN_TIMEOUT_S) as talk:
        if hashlib.sha256(talk.certificate).digest() != token.fingerprint:
            detail = (
                f"{options.url}: the certificate there is not the one in the token; nothing was told to it"
            )
            advice = "it is another server, or has a new certificate since: make another token, on that node"
            raise errors.error_for(errors.TLS_FAILED, detail, advice)
        listen, addresses = places(config, options, talk.local_host)
        wish = _wish(options, config, node, addresses)
        admission = talk.say(msgspec.structs.replace(wish, token_id=token.id, token_secret=token.secret))
    joined = stored.Joined(
        cluster=admission.cluster,
        node=node,
        listen=listen,
        addresses=addresses,
        server_name=wish.server_name,
        through=admission.node,
        fingerprint=token.fingerprint.hex(),
    )
    first = Neighbour(node=admission.node, addresses=[options.url], server_name=admission.server_name)
    stored.keep(options.data_dir, joined, admission, [first, *admission.neighbours])
    tell_members(options.data_dir, joined, "join", admission.neighbours, own, options.on_warning)
    return joined


def tell_members(
    data_dir: Path,
    joined: stored.Joined,
    wish: Literal["join", "part", "stay", "leave"],
    neighbours: list[Neighbour],
    certificate: tuple[str, str],
    on_warning: Callable[[str], None],
) -> None:
    """Have other nodes make, shut or delete their side of the link; who cannot be reached is named with what to do."""
    secret, authority = stored.secret_of(data_dir), stored.authority_of(data_dir)
    cert, key = stored.certificate_of(data_dir) or certificate
    for one in neighbours:
        try:
            if not any(map(is_tls, one.addresses)):
                raise errors.invalid("no tls:// address of it is known")
            url = next(filter(is_tls, one.addresses))
            credentials = Credentials(authority, cert or None, key or None)
            name = one.server_name or one.node
            with _Talk(url, credentials, name, timeout_s=MEMBER_TIMEOUT_S) as talk:
                said = Wish(
                    wish=wish,
                    node=joined.node,
                    cluster=joined.cluster,
                    addresses=joined.addresses,
                    server_name=joined.server_name,
                    to=one.node,
                    time_ms=int(time.time() * 1_000),
                )
                talk.say(prove(said, secret))
        except errors.AngariumError as error:
            on_warning(_left_to_do(wish, joined, one.node, error))


def leave(data_dir: Path, admin: Admin, *, force: bool, on_warning: Callable[[str], None]) -> dict[str, Any]:
    """Take the node out of the cluster that it joined, and give what became of that.

    Raises:
        NotFoundError: it joined none (40401).
        ConflictError: messages wait for the way over its links (40902).
    """
    joined = stored.read(data_dir)
    if joined is None:
        detail = f"the node of {data_dir} did not join a cluster with 'angarium up --join'"
        raise errors.error_for(errors.OBJECT_NOT_FOUND, detail, "'angarium link delete' deletes single links")
    config = admin.call("config.show")["router"]
    own = config["tls_cert_file"], config["tls_key_file"]
    links = [
        Neighbour(node=link["name"], addresses=link["addresses"], server_name=link["server_name"])
        for link in admin.call("links.list")
    ]
    if not force:

        def tell(wish: Literal["part", "stay"]) -> None:  # who cannot be told is named when the node leaves
            tell_members(data_dir, joined, wish, links, own, lambda _: None)

        empty(admin, [one.node for one in links], tell)
    for one in links:
        tell_members(data_dir, joined, "leave", [one], own, on_warning)
        admin.call("objects.delete", kind="link", name=one.node, vpn=None)
    left = stored.put_away(data_dir)
    return {"cluster": joined.cluster, "links": [one.node for one in links], "kept": str(left)}


def places(config: NodeConfig, options: JoinOptions, local_host: str) -> tuple[list[str], list[str]]:
    """Give where the node shall listen, and by which addresses others reach it.

    Who says nothing gets a tls:// address on the address of this host that the cluster sees, and the usual one for
    clients of this host.

    Args:
        config: of its file.
        options: what was asked.
        local_host: the address by which this host reached the cluster.

    Raises:
        InvalidRequestError: no other node could reach it (40018).
    """
    usual = _DEFAULT.router.listen
    host = f"[{local_host}]" if ":" in local_host else local_host
    listen = list(options.listen) or (config.router.listen if config.router.listen != usual else [])
    if not listen:
        port = usual[0].rpartition(":")[2]
        tls = f"tls://{host}:{port}"
        listen = [tls, *(url for url in usual if host_and_port(url) != host_and_port(tls))]
    addresses = list(options.addresses)
    if not addresses:
        addresses = [reachable(url, host) for url in listen if is_tls(url)]
    for url in addresses:
        if not is_tls(url) or has_open_port(url):
            detail = f"{url} is no address by which others reach this node"
            raise errors.invalid(detail, "write tls://HOST:PORT, with the port")
    if not any(map(is_tls, listen)) or not addresses:
        detail = f"no other node can reach this one: it listens on {', '.join(listen)}"
        raise errors.invalid(detail, "add --listen tls://HOST:PORT")
    return listen, addresses


def _name_of(data_dir: Path, config: NodeConfig) -> str:
    """Give the name that the node will have.

    Raises:
        ConflictError: it runs (40902).
    """
    try:
        node = read_node_file(data_dir)
    except errors.UnavailableError:
        node = NodeFile(node="", node_id="", workers=0)
    if node_runs(data_dir, node):
        raise in_use(data_dir)
    return config.node.name or node.node or socket.gethostname()


def _refuse_another(joined: stored.Joined, fingerprint: str) -> None:
    if joined.fingerprint != fingerprint:
        detail = f"this node joined cluster {joined.cluster!r} already, through node {joined.through!r}"
        advice = "start it without --join; or leave that first: angarium cluster leave"
        raise errors.error_for(errors.OBJECT_EXISTS, detail, advice)


def _wish(options: JoinOptions, config: NodeConfig, node: str, addresses: list[str]) -> Wish:
    from cluster.security.authority import create_request

    own = options.cert_file or config.router.tls_cert_file
    named = config.cluster.name
    return Wish(
        node=node,
        cluster="" if named == _DEFAULT.cluster.name else named,
        addresses=addresses,
        server_name=_server_name(node, own) if own else _signed_name(node, addresses),
        request=create_request(stored.begin(options.data_dir) / stored.KEY, node),
        wants_certificate=not own,
    )


def _signed_name(node: str, addresses: list[str]) -> str:
    """Give the name under which neighbours check the certificate that they will make: no host has every name."""
    from cluster.security.authority import is_host_name

    place = host_and_port(addresses[0])
    return "" if is_host_name(node) or place is None else place[0]


def _server_name(node: str, file: str) -> str:
    """Give the name by which others have to check our certificate; empty if that is the name of the node."""
    from cluster.security.certificates import names_of, read_certificates

    names = names_of(read_certificates(Path(file))[0])
    return "" if node in names or not names else names[0]


def _left_to_do(wish: str, joined: stored.Joined, node: str, error: errors.AngariumError) -> str:
    if wish == "leave":
        return f"node {node!r} could not be told: {error}; on {node}: angarium link delete {joined.node}"
    address = ",".join(joined.addresses)
    more = f" --set server_name={joined.server_name}" if joined.server_name else ""
    command = f"angarium link create {joined.node} --set addresses={address}{more}"
    return f"node {node!r} could not be told: {error}; on {node}: {command}"


def _trusting_all() -> Credentials:
    """Give what takes any certificate: it is compared with the token before anything is said."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return Credentials(ssl_context=context)


class _Talk:
    """One wish and its answer; a context manager that connects and closes."""

    def __init__(
        self, url: str, credentials: Credentials, server_name: str = "", advice: str = "", *, timeout_s: float
    ) -> None:
        self._url = url
        self._deadline = time.monotonic() + timeout_s
        self._channel = RemoteTransport(url, credentials, server_name, advice)

    def __enter__(self) -> _Talk:
        self._channel.connect(self._deadline)
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    @property
    def certificate(self) -> bytes:
        """What the other side showed."""
        return self._channel.certificate()

    @property
    def local_host(self) -> str:
        """The address of this host on the way there."""
        return self._channel.local_host()

    def say(self, wish: Wish) -> Admission:
        """Give the answer to a wish.

        Raises:
            AngariumError: it was refused, or there was no answer.
        """
        self._channel.send_message([wire.JOIN, msgspec.msgpack.encode(wish)], self._deadline)
        while (left_s := self._deadline - time.monotonic()) > 0:
            message = self._channel.receive_message(left_s)
            if message is None:
                continue
            if message[0] == wire.CLOSED:
                code, detail, *_ = wire.unpack_header(message[1])
                raise errors.error_for(int(code), str(detail))
            if message[0] == wire.JOINED:
                return msgspec.msgpack.decode(message[1], type=Admission)
        raise errors.error_for(errors.TIMEOUT, f"{self._url} does not answer")
