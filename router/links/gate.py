"""Which neighbours may come: HELLO of a link process, judged.

A link process comes from inside (it is one of this node, and shows that with `Hello.behalf`) or from another node (it
knows the secret of the cluster). What is wrong is told with a code of its own to the one who came, and to the operators
of this node as an event; the link process tells its own.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from router.sessions.hello import check_version
from router.sessions.neighbour import LinkHello, Neighbour

if TYPE_CHECKING:
    from router.ground.ground import Ground
    from router.sessions.directory import Directory, Vpn
    from router.sessions.hello import Hello
    from router.sessions.session import Session

#: A refusal that comes again and again, because a link process tries again, is one event in this time.
REFUSAL_EVENT_S: Final = 60.0
#: Refusals that are remembered for that; more are forgotten together.
REFUSALS_MAX: Final = 1_000
#: A link process that is refused tries again within a few seconds; a refusal that is older is no news any more.
REFUSAL_RECENT_S: Final = 15.0
#: Refusals of those who knew the secret of the cluster: their names are no inventions.
_OF_NEIGHBOURS: Final = (errors.LINK_NOT_ALLOWED, errors.LINK_INITIATOR_MISMATCH, errors.LINK_EXISTS)


class _Refusal(NamedTuple):
    """Why a neighbour was refused, when last, and when the operators were told."""

    error: AngariumError
    at: float
    told_at: float


class Gate:
    """Judges neighbours by the identity of this node and its link objects."""

    def __init__(
        self,
        ground: Ground,
        directory: Directory,
    ) -> None:
        self._wall_ms = ground.wall_ms
        self._node = ground.node
        self._identity = ground.identity
        self._directory = directory
        self._outbox = ground.out
        #: (node, Message VPN, code) -> the refusal; at most REFUSALS_MAX.
        self._refusals: dict[tuple[str, str, int], _Refusal] = {}

    def describe_self(self, now: float) -> dict[str, str | int]:
        """Give what WELCOME says of this node to a link process; by its clock the other side counts ages."""
        identity = self._identity
        return {
            "node": self._node,
            "node_id": identity.node_id,
            "cluster": identity.cluster,
            "wall_ms": self._wall_ms(now),
        }

    def judge(self, hello: Hello, now: float) -> tuple[Vpn, Neighbour]:
        """Give the Message VPN and the neighbour of a link session.

        Raises:
            AngariumError: why it may not come.
        """
        link = hello.link
        if link is None or hello.username != wire.LINK_USERNAME:
            raise error_for(errors.LINK_UNAUTHORIZED, f"the username of a link is {wire.LINK_USERNAME}")
        try:
            check_version(hello)
            return self._judge(hello, link, now)
        except AngariumError as error:
            self.refused(link.node, hello.vpn, error, now)
            raise

    def _judge(self, hello: Hello, link: LinkHello, now: float) -> tuple[Vpn, Neighbour]:
        if not self._directory.complete:
            raise error_for(errors.SHUTTING_DOWN, "the node has not loaded its configuration yet")
        identity = self._identity
        if link.cluster != identity.cluster:
            # Who comes has not shown the secret yet, so it does not hear what this cluster is called.
            raise error_for(errors.CLUSTER_MISMATCH, f"the node is not in cluster {link.cluster!r}")
        if link.node == self._node or link.node_id == identity.node_id:
            raise error_for(errors.LINK_TO_OWN_NODE, f"both ends are node {self._node!r}")
        is_local = hello.behalf is not None  # which was looked at before
        if not is_local and not is_same(hello.password, identity.secret):
            without = "" if identity.secret else "; the node has no cluster.secret_file"
            raise error_for(errors.LINK_UNAUTHORIZED, f"the secret is not that of the cluster{without}")
        self.check_object(link.node, is_local=is_local)
        vpn = self._directory.vpn_to_join(hello.vpn)
        self._admitted(link.node, vpn.name)
        return vpn, Neighbour(link, now, is_local=is_local)

    def check_object(self, node: str, *, is_local: bool) -> None:
        """Judge a neighbour by the link object that there is for it now.

        Raises:
            ForbiddenError: there is none, it is disabled (40320), or the other side has to open it (40321).
        """
        attributes = self._directory.links.get(node)
        if attributes is None:
            raise error_for(errors.LINK_NOT_ALLOWED, f"node {self._node!r} has no link {node!r}")
        if not attributes["enabled"]:
            raise error_for(errors.LINK_NOT_ALLOWED, f"link {node!r} of node {self._node!r} is disabled")
        initiator = str(attributes["initiator"])
        if is_local != opens(self._node, node, initiator):
            detail = f"node {self._node!r} has link {node!r} with initiator {initiator}"
            raise error_for(errors.LINK_INITIATOR_MISMATCH, detail)

    def check_successor(self, session: Session, new: Neighbour, now: float) -> None:
        """Judge a second session of a neighbour while the first one is there.

        Raises:
            ConflictError: it is not the same link process, or its successor (40904).
        """
        old, vpn = session.link, session.vpn.name
        assert old is not None, "no client has such a name"
        if not new.may_follow(old):
            detail = f"node {old.node!r} has a link to node {self._node!r} in Message VPN {vpn!r}"
            error = error_for(errors.LINK_EXISTS, detail)
            self.refused(new.node, vpn, error, now)
            raise error

    def refused(self, node: str, vpn: str, error: AngariumError, now: float) -> None:
        """Tell the operators that a neighbour was refused, unless they know."""
        self._note(node, vpn, error, now, "a link of {} was refused: {}")

    def was_refused(self, node: str, vpn: str, error: AngariumError, now: float) -> None:
        """Tell the operators that a neighbour, or its link process, does not want the link, unless they know."""
        self._note(node, vpn, error, now, "{} refused the link: {}")

    def _note(self, node: str, vpn: str, error: AngariumError, now: float, text: str) -> None:
        code = error.code
        if code not in _OF_NEIGHBOURS and node not in self._directory.links:
            node = ""  # nobody we know: it could make up a name each time, to be told of each time
        if vpn not in self._directory.vpns:
            vpn = ""
        known = self._refusals.get((node, vpn, code))
        if known is None and len(self._refusals) >= REFUSALS_MAX:
            self._refusals.clear()
        is_news = known is None or now - known.told_at >= REFUSAL_EVENT_S
        told_at = now if known is None or is_news else known.told_at
        self._refusals[node, vpn, code] = _Refusal(error, now, told_at)
        if is_news:
            who = f"node {node!r}" if node else "a node without a link here"
            told = text.format(who, error)
            self._outbox.event("SYSTEM_LINK_REFUSED", told, severity="error", link=node, vpn=vpn, code=code)

    def recent(self, now: float) -> list[dict[str, Any]]:
        """Give who was refused lately, and why; those that were never known to be of the cluster are left out."""
        return [
            {"node": node, "vpn": vpn, "code": code, "error": str(refusal.error)}
            for (node, vpn, code), refusal in self._refusals.items()
            if node and now - refusal.at < REFUSAL_RECENT_S
        ]

    def _admitted(self, node: str, vpn: str) -> None:
        """What kept a neighbour out is over, but for another node of its name."""
        for key, refusal in self._refusals.items():
            if key[0] == node and key[1] in ("", vpn) and key[2] != errors.LINK_EXISTS:
                self._refusals[key] = refusal._replace(at=float("-inf"))


def opens(node: str, neighbour: str, initiator: str) -> bool:
    """Tell whether a node is the one that opens its link to a neighbour; by default the higher name does."""
    return initiator == "local" or (initiator == "lexical" and node > neighbour)


def is_same(given: str | None, secret: str) -> bool:
    """Compare secrets without telling by the time how much of them is right; an empty one fits nothing."""
    digests = [
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (given or "", secret)
    ]
    return hmac.compare_digest(*digests) and bool(secret)
