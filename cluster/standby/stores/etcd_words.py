"""What is said to etcd, and what it says: transactions of its JSON gateway as values. Pure.

Two keys have everything: PREFIX/NODE/standing, which stays, and PREFIX/NODE/holder, which is attached to a lease and
vanishes with it. Each transaction compares what it needs and reads both keys, so one answer says whether it was carried
out and what is there now. Keys and values travel in base64, numbers of 64 bits as text, and what is zero is left out.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.standby.pair.outside import Seen
from cluster.standby.stores.store import NoAnswerError
from cluster.standby.stores.written import line_of, read_holder, read_standing, text_of

if TYPE_CHECKING:
    from cluster.standby.pair.outside import Holder
    from cluster.standby.stores.written import WrittenStanding

#: A comparison, an operation, a transaction.
_Json = dict[str, Any]


class Found(NamedTuple):
    """What an answer says."""

    is_done: bool
    seen: Seen
    #: The request that wrote the standing.
    change: str
    #: Of the key of the holder: it rises with each renewal; 0: there is none.
    holder_revision: int


class Transactions:
    """Those of one node id."""

    def __init__(self, prefix: str, node_id: str) -> None:
        folder = f"{prefix.strip('/')}/{node_id}"
        self._standing = _encoded(f"{folder}/standing")
        self._holder = _encoded(f"{folder}/holder")

    def read(self) -> _Json:
        """Read both keys."""
        return self._transaction([], [])

    def take(self, me: Holder, seen: Seen, standing: WrittenStanding, lease: str) -> _Json:
        """Be the holder with a new standing, if both keys are as they were seen."""
        if seen.holder is None:
            holder = {"key": self._holder, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        else:
            holder = self._is_holder(seen.holder)
        puts = [self._put_standing(standing), self._put_holder(me, lease)]
        return self._transaction([self._is_at(seen.revision), holder], puts)

    def swap(self, me: Holder, revision: int, standing: WrittenStanding) -> _Json:
        """Change the standing as its holder."""
        compared = [self._is_at(revision), self._is_holder(me)]
        return self._transaction(compared, [self._put_standing(standing)])

    def renew(self, me: Holder, holder_revision: int, lease: str) -> _Json:
        """Attach the holder to a new lease, if nobody has touched it since that revision.

        A renewal that arrives late compares an old revision and is not carried out: else it would go back to a lease
        that ends earlier than the holder believes.
        """
        at = {"target": "MOD", "result": "EQUAL", "mod_revision": str(holder_revision)}
        compared = [self._is_holder(me), {"key": self._holder, **at}]
        return self._transaction(compared, [self._put_holder(me, lease)])

    def resign(self, me: Holder) -> _Json:
        """Be the holder no more."""
        return self._transaction([self._is_holder(me)], [{"request_delete_range": {"key": self._holder}}])

    def _transaction(self, compared: list[_Json], puts: list[_Json]) -> _Json:
        reads = [{"request_range": {"key": key}} for key in (self._standing, self._holder)]
        return {"compare": compared, "success": puts + reads, "failure": reads}

    def _is_at(self, revision: int) -> _Json:
        at = {"target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
        return {"key": self._standing, **at}

    def _is_holder(self, holder: Holder) -> _Json:
        is_it = {"target": "VALUE", "result": "EQUAL", "value": _encoded(line_of(holder))}
        return {"key": self._holder, **is_it}

    def _put_standing(self, standing: WrittenStanding) -> _Json:
        return {"request_put": {"key": self._standing, "value": _encoded(text_of(standing))}}

    def _put_holder(self, me: Holder, lease: str) -> _Json:
        return {"request_put": {"key": self._holder, "value": _encoded(line_of(me)), "lease": lease}}


def found_in(body: Any) -> Found:
    """Give what an answer to a transaction says.

    Raises:
        NoAnswerError: it says something else.
    """
    try:
        standing, holder = (_first_of(each) for each in body["responses"][-2:])
        written = None if standing is None else read_standing(base64.b64decode(standing["value"]))
        seen = Seen(
            0 if standing is None else int(standing["mod_revision"]),
            None if written is None else written.standing,
            None if holder is None else read_holder(base64.b64decode(holder["value"]).decode()),
        )
        revision = 0 if holder is None else int(holder["mod_revision"])
        return Found(
            body.get("succeeded", False) is True, seen, "" if written is None else written.change, revision
        )
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise NoAnswerError(f"etcd answered something else: {type(error).__name__} {error}") from None


def _first_of(response: _Json) -> _Json | None:
    pairs = response["response_range"].get("kvs", [])
    return pairs[0] if pairs else None


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
