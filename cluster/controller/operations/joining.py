"""Who may join the cluster through this node, and who leaves it.

    operation               arguments                                answer
    cluster.token.create    expires_s=3600, uses=1, addresses=[],    {"token", "id", "addresses", "expires_in_s",
                            authority=""                             "uses"}
    cluster.token.list                                               the tokens, without what would admit anybody
    cluster.token.delete    id                                       None

The router asks `cluster.join` (`wish`, `address`) for an unauthenticated connection that sent JOIN; the answer goes
to it as it is. A host with a token is judged; the use of the token is kept before the link is made, and that before
the answer: so a join that breaks in between can be repeated, by the same node with the same key. A member needs no
token.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from angarium import errors, wire
from angarium.client.transport.address import parse
from angarium_server.connections.addresses import is_tls, reachable
from cluster.controller.switchboard.effects import UseVault
from cluster.controller.switchboard.event_limits import OTHERS
from cluster.join import frames
from cluster.join.tokens import ID_BYTES, SECRET_BYTES, Tokens, Written
from cluster.join.vault import NO_TLS, SignOrder, Vaulted, VaultWork

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.admin import arguments
    from cluster.catalog.catalog import Catalog
    from cluster.controller.access.callers import Callers
    from cluster.controller.switchboard.changes import Changes
    from cluster.controller.switchboard.effects import Effect
    from cluster.controller.switchboard.switchboard import Asker, Handlers, ProcessAsker, Switchboard


class _Waiting(NamedTuple):
    """What follows when the vault was used, and whom to refuse otherwise."""

    then: Callable[[Vaulted], None]
    refuse: Callable[[errors.AngariumError], None]


class JoinOperations:
    """Admits nodes."""

    def __init__(
        self,
        board: Switchboard,
        catalog: Catalog,
        changes: Changes,
        callers: Callers,
        node: str,
    ) -> None:
        """Make links of this node in this catalog through `changes`; nobody is admitted before `begin`."""
        self._board = board
        self._catalog = catalog
        self._changes = changes
        self._callers = callers
        self._node = node
        #: What a node gets that joins, and what proves that somebody is a member.
        self._cluster = self._secret = ""
        self._tokens = Tokens()
        #: Gives random bytes, for new tokens.
        self._dice: Callable[[int], bytes] = secrets.token_bytes
        #: Number -> what waits for the vault; empty between two events.
        self._waiting: dict[int, _Waiting] = {}
        self.operations: Handlers = {
            "cluster.token.create": self._create,
            "cluster.token.list": self._list,
            "cluster.token.delete": self._delete,
        }

    def begin(
        self,
        cluster: str,
        secret: str,
        tokens: Tokens,
        dice: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Take the name and the secret of the cluster, and the tokens that were kept."""
        self._cluster, self._secret = cluster, secret
        self._tokens, self._dice = tokens, dice

    @property
    def refused(self) -> int:
        """How often somebody showed a token that is none."""
        return self._tokens.refused_total

    # -- the vault -------------------------------------------------------------------------------------------

    def _use_vault(
        self, work: VaultWork, then: Callable[[Vaulted], None], refuse: Callable[[errors.AngariumError], None]
    ) -> None:
        number = self._board.new_number()
        self._waiting[number] = _Waiting(then, refuse)
        self._board.emit(UseVault(number, work))

    def vault_used(self, number: int, vaulted: Vaulted) -> list[Effect]:
        """What a join needs is signed and kept: go on."""
        waiting = self._waiting.pop(number)
        try:
            waiting.then(vaulted)
        except errors.AngariumError as error:
            waiting.refuse(error)
        return self._board.taken()

    def vault_refused(self, number: int, error: errors.AngariumError) -> list[Effect]:
        """Something failed, and nothing was kept."""
        self._waiting.pop(number).refuse(error)
        return self._board.taken()

    # -- operators -------------------------------------------------------------------------------------------

    def _create(self, request: arguments.JoinTokenArguments, asker: Asker, _now: float) -> None:
        own = [url for url in self._board.node.get("urls", ()) if is_tls(url)]
        if not own:
            raise errors.error_for(errors.INVALID_CONFIGURATION, f"no host can join here: {NO_TLS}")
        for url in request.addresses:
            if not is_tls(url):
                raise errors.invalid(f"{url}: write tls://HOST:PORT")
        secret = Written(self._dice(ID_BYTES), self._dice(SECRET_BYTES), b"")
        tokens = self._tokens.create(
            secret, self._board.now_s(), request.expires_s, request.uses, request.authority
        )

        def then(vaulted: Vaulted) -> None:
            self._tokens.take(tokens)
            written = secret._replace(fingerprint=vaulted.fingerprint)
            given = {"expires_in_s": request.expires_s, "uses": request.uses, "id": written.id.hex()}
            addresses = request.addresses or [reachable(url, vaulted.host or "HOST") for url in own]
            text = (
                f"join token {written.id.hex()} was made: for {request.uses} nodes, for {request.expires_s} s"
            )
            self._board.record_system("info", "SYSTEM_CLUSTER_TOKEN_CREATED", text)
            self._board.reply(asker, {"token": written.text(), "addresses": addresses, **given})

        self._use_vault(VaultWork(tokens=tokens), then, lambda error: self._refuse(asker, error))

    def _list(self, _request: arguments.NoArguments, asker: Asker, _now: float) -> None:
        self._board.reply(asker, self._tokens.rows(self._board.now_s()))

    def _delete(self, request: arguments.JoinTokenIdArguments, asker: Asker, _now: float) -> None:
        tokens = self._tokens.remove(request.id, self._board.now_s())

        def then(_vaulted: Vaulted) -> None:
            self._tokens.take(tokens)
            self._board.reply(asker, None)

        self._use_vault(VaultWork(tokens=tokens), then, lambda error: self._refuse(asker, error))

    # -- unauthenticated connections -------------------------------------------------------------------------

    def asked(self, said: bytes, address: str, asker: ProcessAsker) -> None:
        """An unauthenticated connection asks for something."""
        node = ""

        def refuse(error: errors.AngariumError) -> None:
            text = f"node {node!r} at {address or 'an unknown address'} was refused by the cluster: {error}"
            self._board.record_system("warning", "SYSTEM_CLUSTER_JOIN_REFUSED", text, OTHERS)
            self._refuse(asker, error)

        try:
            wish = msgspec.msgpack.decode(said, type=frames.Wish)
            node = wish.node
            if wish.version != frames.VERSION:
                detail = f"JOIN of version {wish.version}; this node knows {frames.VERSION}"
                raise errors.error_for(errors.UNSUPPORTED_VERSION, detail)
            if wish.token_id:
                self._admit(wish, asker, refuse)
            else:
                self._member(wish, asker)
        except msgspec.MsgspecError as error:
            refuse(errors.error_for(errors.MALFORMED_FRAME, f"JOIN: {error}"))
        except errors.AngariumError as error:
            refuse(error)

    def _admit(
        self, wish: frames.Wish, asker: ProcessAsker, refuse: Callable[[errors.AngariumError], None]
    ) -> None:
        """Judge a host that shows a token."""
        from cluster.security.authority import key_of_request  # nodes that never join do without the library

        if wish.cluster not in ("", self._cluster):
            detail = (
                f"node {wish.node!r} has cluster.name = {wish.cluster!r}, this is cluster {self._cluster!r}"
            )
            raise errors.error_for(errors.CLUSTER_MISMATCH, detail)
        now_s = self._board.now_s()
        token = self._tokens.find(wish.token_id, wish.token_secret, now_s)
        key = key_of_request(
            wish.request
        )  # not before: unauthenticated peers have nothing parsed that costs more than a frame
        if wish.wants_certificate:
            self._refuse_operator(wish.node)
        tokens = self._tokens.use(token, wish.node, key, now_s)
        changes = self._link_to(wish, is_known=wish.node in token.used)
        hosts = tuple(dict.fromkeys(parse(url)[0] for url in wish.addresses))
        sign = SignOrder(wish.request, wish.node, hosts, token.authority) if wish.wants_certificate else None

        def then(vaulted: Vaulted) -> None:
            self._tokens.take(tokens)
            text = f"node {wish.node!r} joined the cluster with join token {token.id}"
            self._board.record_system("info", "SYSTEM_CLUSTER_JOINED", text)
            answer = self._admission(wish.node, vaulted)
            self._changes.make(changes, asker, f"made by join token {token.id}", lambda: answer)

        self._use_vault(VaultWork(sign, tokens), then, refuse)

    def _refuse_operator(self, node: str) -> None:
        """Refuse a name that an operator has in a certificate: this node would sign one by which it administers.

        Raises:
            ConflictError: see above (40901).
        """
        if self._callers.is_certified(node):
            detail = f"a certificate of {node!r} is that of an operator; set another node.name"
            raise errors.error_for(errors.OBJECT_EXISTS, detail)

    def _admission(self, node: str, vaulted: Vaulted) -> bytes:
        neighbours = [
            frames.Neighbour(node=name, addresses=link["addresses"], server_name=link["server_name"])
            for (_, name), link in sorted(self._catalog.of_kind("link").items())
            if name != node
        ]
        admission = frames.Admission(
            node=self._node,
            cluster=self._cluster,
            secret=self._secret,
            authority=vaulted.authority,
            certificate=vaulted.certificate,
            server_name=vaulted.server_name,
            neighbours=neighbours,
        )
        return msgspec.msgpack.encode(admission)

    def _member(self, wish: frames.Wish, asker: ProcessAsker) -> None:
        """Do what a member wishes: make the link with it, or take that away."""
        frames.check_proof(wish, self._secret, self._cluster, self._node, self._board.now_s() * 1_000)
        answer = msgspec.msgpack.encode(frames.Admission(node=self._node))
        if wish.wish == "join":
            there = self._catalog.get("link", "", wish.node)
            changes = self._link_to(wish, is_known=there is not None and there["addresses"] == wish.addresses)
            self._changes.make(changes, asker, f"made by node {wish.node!r}, which joined", lambda: answer)
            return
        if wish.wish in ("part", "stay"):
            changes = self._switch(wish.node, takes=wish.wish == "stay")
            verb = f"switched by node {wish.node!r}, which leaves, or stays"
            self._changes.make(changes, asker, verb, lambda: answer)
            return
        known = self._catalog.get("link", "", wish.node) is not None
        changes = self._catalog.delete("link", "", wish.node) if known else []
        self._board.record_system("info", "SYSTEM_CLUSTER_LEFT", f"node {wish.node!r} left the cluster")
        self._changes.make(changes, asker, f"deleted by node {wish.node!r}, which left", lambda: answer)

    def _switch(self, node: str, *, takes: bool) -> list[Any]:
        """Give the changes after which the queues of a link take messages, or take nothing more."""
        name = f"{wire.LINK_NAME_PREFIX}{node}"
        return [
            change
            for vpn, queue in list(self._catalog.of_kind("queue"))
            if queue == name
            for change in self._catalog.update("queue", vpn, name, {"ingress_enabled": takes})
        ]

    def _link_to(self, wish: frames.Wish, *, is_known: bool) -> list[Any]:
        """Give the changes that make the link with a node, unless it is there and of the same node, which `is_known`.

        Raises:
            ConflictError: the name is taken (40901).
            InvalidRequestError: it has no name or address that a link could have (40018, 40015).
        """
        given = {"addresses": wish.addresses, "server_name": wish.server_name}
        if wish.node == self._node:
            detail = f"the node that it joins is called {wish.node!r} too"
            raise errors.error_for(errors.OBJECT_EXISTS, f"{detail}; set another node.name")
        if not wish.addresses or not all(map(is_tls, wish.addresses)):
            raise errors.invalid(f"node {wish.node!r} names no tls:// address by which others reach it")
        there = self._catalog.get("link", "", wish.node)
        if there is None:
            return self._catalog.create("link", "", wish.node, given)
        if is_known or not there["addresses"]:
            return self._catalog.update("link", "", wish.node, given)
        detail = (
            f"node {self._node!r} has a link with another node {wish.node!r}; set another node.name, or "
            f"delete that link there: angarium link delete {wish.node}"
        )
        raise errors.error_for(errors.OBJECT_EXISTS, detail)

    def _refuse(self, asker: Asker, error: errors.AngariumError) -> None:
        self._board.refuse(asker, error.code, error.detail)
