"""An alarm: raises an event when usage nears a limit, when the limit refuses something, and when usage is low again.

    value  0 ........ clear ........ set ........ limit
                                       ---> NAME_HIGH        once
                                                 ---> NAME_EXCEEDED    once: something was refused at the limit
             <------ NAME_HIGH_CLEAR                         once; from here on all of them may come again

Between the set and the clear value there are no events, so a value that swings around a limit costs a few lines and not
one per message or client (R185, R197). No I/O, no clock; the owner of the counter calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from router.ground.effects import Outbox
    from router.sessions.directory import Attributes, Vpn
    from router.sessions.session import Session

#: Set and clear percent of limits that have no thresholds of their own: the reference broker's defaults.
DEFAULT_PERCENTS: Final = (80, 60)
HIGH: Final = "_HIGH"
#: Ends the name of the event that takes another one back.
CLEAR: Final = "_CLEAR"
EXCEEDED: Final = "_EXCEEDED"


class Alarm:
    """One thing that is watched."""

    __slots__ = ("_fields", "_name", "_what", "is_exceeded", "is_set")

    def __init__(self, name: str, what: str, **fields: Any) -> None:
        """Begin with nothing told.

        Args:
            name: of the first event, `..._HIGH`.
            what: begins the sentence that operators read.
            fields: of the events: scope and whom they are about.
        """
        self._name = name
        self._what = what
        self._fields = fields
        #: True from the event to its `_CLEAR`.
        self.is_set = False
        #: True from `_EXCEEDED` until the value is below the clear value.
        self.is_exceeded = False

    def update(self, value: int, limit: int, percents: tuple[int, int], outbox: Outbox) -> None:
        """Look at a new value; `percents` are the set and the clear value.

        A limit of 0 is none, and one of 1 says nothing by being reached.
        """
        set_percent, clear_percent = percents
        if not self.is_set and limit > 1 and value * 100 > limit * set_percent:
            self.is_set = True
            text = f"{self._what}: {value} of {limit}, over {set_percent} percent"
            outbox.event(self._name, text, severity="warning", **self._fields)
        elif (self.is_set or self.is_exceeded) and (value * 100 < limit * clear_percent or not limit):
            if self.is_set:
                text = f"{self._what}: {value} of {limit}, below {clear_percent} percent"
                outbox.event(self._name + CLEAR, text, **self._fields)
            self.is_set = self.is_exceeded = False

    def exceeded(self, limit: int, outbox: Outbox) -> None:
        """Something was refused because of the limit; told once until the value is below the clear value."""
        if not self.is_exceeded:
            self.is_exceeded = True
            text = f"{self._what}: the limit of {limit} is reached, more is refused"
            outbox.event(exceeded_name(self._name), text, severity="warning", **self._fields)


class _Count:
    """What one username has."""

    __slots__ = ("alarm", "count")

    def __init__(self, alarm: Alarm) -> None:
        self.alarm = alarm
        self.count = 0


class UsernameCounts:
    """How many of something the clients of each username have together, with an alarm for each username."""

    def __init__(self, name: str, have: str, outbox: Outbox) -> None:
        """Begin with none; `name` is that of the first event, `have` ends a sentence: "have flows"."""
        self._name = name
        self._have = have
        self._outbox = outbox
        #: (VPN number, username) -> what it has; those with any, and those that were refused their first.
        self._of: dict[tuple[int, str], _Count] = {}

    def get(self, vpn: Vpn, username: str) -> int:
        """Give how many a username has."""
        found = self._of.get((vpn.id, username))
        return 0 if found is None else found.count

    def change(self, vpn: Vpn, username: str, change: int, limit: int) -> None:
        """Note that a username has so many more, or fewer, of so many that it may have; a limit of 0 is none."""
        found = self._find(vpn, username)
        found.count += change
        found.alarm.update(found.count, limit, DEFAULT_PERCENTS, self._outbox)
        if not found.count:
            del self._of[vpn.id, username]

    def exceeded(self, vpn: Vpn, username: str, limit: int) -> None:
        """A client was refused because its username has all that it may have."""
        self._find(vpn, username).alarm.exceeded(limit, self._outbox)

    def _find(self, vpn: Vpn, username: str) -> _Count:
        found = self._of.get((vpn.id, username))
        if found is None:
            fields = {"scope": "VPN", "vpn": vpn.name, "username": username}
            alarm = Alarm(self._name, f"clients of username {username} {self._have}", **fields)
            found = self._of[vpn.id, username] = _Count(alarm)
        return found


def client_is_full(session: Session, name: str, what: str, limit: int, outbox: Outbox) -> None:
    """A client was refused something because of a limit of its own; told once until it has few of them."""
    if name not in session.full:
        session.full[name] = None
        text = f"client {session.client_name} has {limit} {what}, all that its client profile allows"
        fields = {"scope": "CLIENT", "vpn": session.vpn.name, "client": session.client_name}
        fields["username"] = session.username
        outbox.event(name, text, severity="warning", **fields)


def client_has_room(session: Session, name: str, value: int, limit: int) -> None:
    """A client has so many now: below the clear value its limit may be told again."""
    if name in session.full and value * 100 < limit * DEFAULT_PERCENTS[1]:
        del session.full[name]


def exceeded_name(name: str) -> str:
    """Give the name of the event that a limit was reached; it begins like the one that it is near."""
    return name.removesuffix(HIGH) + EXCEEDED


def percents(attributes: Attributes, name: str) -> tuple[int, int]:
    """Give the pair `event_<name>_set_percent`, `event_<name>_clear_percent`."""
    return int(attributes[f"event_{name}_set_percent"]), int(attributes[f"event_{name}_clear_percent"])
