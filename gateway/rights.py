"""What attached clients may publish, judged as workers judge it, because rounds of a gateway are matched without rules.

Clients with the same rights have one object, so its memory of topics serves all of them.
"""

from __future__ import annotations

from typing import Final, TypeAlias
from weakref import WeakValueDictionary

from angarium_server.access import TopicRules, publish_refusal
from angarium_server.frames.gateways import Rights

#: Topics whose verdict is remembered for one list of rules, and for all lists of a process: 200 bytes each.
VERDICTS_MAX: Final = 10_000
ALL_VERDICTS_MAX: Final = 100_000
#: Of who is not let in yet.
NO_RIGHTS: Final = Rights(
    publish_allowed=False,
    publish_exceptions=[],
    queue_units=0,
    may_share=False,
    may_send_guaranteed=False,
    may_receive_guaranteed=False,
)

_Key: TypeAlias = tuple[bool, tuple[str, ...], int, bool, bool, bool]


class ClientRights:
    """The rights of some clients, as the router has told them."""

    __slots__ = (
        "__weakref__",
        "_known",
        "_rules",
        "may_receive_guaranteed",
        "may_send_guaranteed",
        "may_share",
        "queue_units",
        "verdicts",
    )

    def __init__(self, rights: Rights, known: KnownRights) -> None:
        self._known = known
        self._rules = TopicRules(rights.publish_exceptions, default_allow=rights.publish_allowed)
        #: Topic -> error code or 0, of those that were asked for; at most VERDICTS_MAX.
        self.verdicts: dict[str, int] = {}
        #: Work units of direct messages that may wait for a client.
        self.queue_units: Final = rights.queue_units
        self.may_share: Final = rights.may_share
        self.may_send_guaranteed: Final = rights.may_send_guaranteed
        self.may_receive_guaranteed: Final = rights.may_receive_guaranteed

    def refusal_of(self, topic: str) -> int:
        """Give the error code for which messages to a topic are refused, or 0."""
        verdict = self.verdicts.get(topic)
        if verdict is None:
            if len(self.verdicts) >= VERDICTS_MAX:
                self.forget()
            self._known.remember_one()
            verdict = self.verdicts[topic] = publish_refusal(self._rules, topic)
        return verdict

    def forget(self) -> None:
        """Forget the verdicts; the hot topics are back after one use each."""
        self._known.remembered -= len(self.verdicts)
        self.verdicts.clear()

    def __len__(self) -> int:
        return len(self.verdicts)


class KnownRights:
    """All rights that clients of this process have, each once."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[_Key, ClientRights] = WeakValueDictionary()
        #: Verdicts in all of them, and in those that are gone since all were forgotten last; at most ALL_VERDICTS_MAX.
        self.remembered = 0

    def find(self, rights: Rights) -> ClientRights:
        """Give the object of these rights."""
        key = (
            rights.publish_allowed,
            tuple(rights.publish_exceptions),
            rights.queue_units,
            rights.may_share,
            rights.may_send_guaranteed,
            rights.may_receive_guaranteed,
        )
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = ClientRights(rights, self)
        return found

    def remember_one(self) -> None:
        """Make room for one verdict more."""
        if self.remembered >= ALL_VERDICTS_MAX:
            for rights in self._known.values():
                rights.forget()
            self.remembered = 0
        self.remembered += 1

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert sum(map(len, self._known.values())) <= self.remembered <= ALL_VERDICTS_MAX
        assert all(len(rights) <= VERDICTS_MAX for rights in self._known.values())
