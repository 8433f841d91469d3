"""Shares of a table of the node: how many of its places one Message VPN and one username may have.

Shares may come to more than the table: they are there so that no one takes all of it, not to divide it. A table of
100,000 places with the shares 50 % and 10 %:

    username 'a' has 10,000       'a' gets no more; it may give places of its own up; everybody else goes on
    Message VPN 'v' has 50,000    none of its usernames gets more; other Message VPNs go on
    all have 100,000              nobody gets more; nobody loses any to another

Called by the registries of producers and of stages.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from angarium import errors

#: (Message VPN, username).
Owner = tuple[str, str]
_KeyT = TypeVar("_KeyT", str, Owner)


class Percents(NamedTuple):
    """What of each table one Message VPN, and one username, may have."""

    vpn: int = 100
    username: int = 100


#: No share is less than the table.
WHOLE: Final = Percents()


class Shares:
    """Who has how many places of one table."""

    def __init__(self, things: str, places: int, percents: Percents, hint: str = "") -> None:
        """Begin with an empty table; `things` is what its places are called, `hint` how to get one free."""
        self._things = things
        self._hint = hint
        self._places = places
        self.per_vpn = _share(places, percents.vpn)
        self.per_username = _share(places, percents.username)
        self._all = 0
        #: Message VPN -> places of its usernames; no zeros.
        self._vpns: dict[str, int] = {}
        #: Owner -> places; no zeros.
        self._owners: dict[Owner, int] = {}

    def __len__(self) -> int:
        return self._all

    def count(self, owner: Owner, change: int) -> None:
        """Note that an owner has so many more, or fewer."""
        self._all += change
        _add(self._vpns, owner[0], change)
        _add(self._owners, owner, change)

    def refusal(self, owner: Owner) -> errors.AngariumError | None:
        """Give why an owner gets no further place: its share is used up (50324), or the table (50319)."""
        vpn, username = owner
        who = f"{vpn}/{username}"
        if self._all >= self._places:
            detail = f"the node has {self._places} {self._things}, as many as it may; {self._hint}"
            return errors.error_for(errors.TOO_MANY_FLOWS, detail)
        if self._owners.get(owner, 0) >= self.per_username:
            return self._used_up(f"username {who!r} has {self.per_username}", "spool.username_share_percent")
        if self._vpns.get(vpn, 0) >= self.per_vpn:
            return self._used_up(f"Message VPN {vpn!r} has {self.per_vpn}", "spool.vpn_share_percent")
        return None

    def _used_up(self, who: str, option: str) -> errors.AngariumError:
        detail = (
            f"{who} of the {self._places} {self._things} of the node, its share by {option}; {self._hint}"
        )
        return errors.error_for(errors.SHARE_EXCEEDED, detail)

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        assert self._all == sum(self._owners.values()) == sum(self._vpns.values())
        assert all(count > 0 for count in (*self._owners.values(), *self._vpns.values()))


def _add(counts: dict[_KeyT, int], key: _KeyT, change: int) -> None:
    counts[key] = counts.get(key, 0) + change
    if not counts[key]:
        del counts[key]


def _share(places: int, percent: int) -> int:
    return max(1, places * percent // 100)
