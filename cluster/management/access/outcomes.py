"""How logins ended: the controller writes it down, whichever way somebody came, and here it is counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Ask = Callable[[str, Any], Awaitable[Any]]

Method = Literal["password", "token", "certificate", "oidc"]

#: Of texts of somebody who logs in; the controller takes no longer ones.
TEXT_MAX: Final = 256


class Caller(NamedTuple):
    """On whose behalf something is asked."""

    operator: str
    address: str
    #: His role and Message VPN, if the answer is to be refused should he have others by now; None: any.
    rights: tuple[str, str] | None = None


class Operator(NamedTuple):
    """An operator who has come in, as the controller has just told of him."""

    name: str
    role: str
    #: Empty: the whole node.
    vpn: str
    #: Another number when a Message VPN was deleted: one of the same name is another one.
    vpns: int

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Take what the controller tells of a login."""
        return cls(*(told[name] for name in cls._fields))


class Login(NamedTuple):
    """Who tries to log in, and how."""

    method: Method
    address: str
    #: The operator, as far as it is known who it is.
    name: str = ""
    #: What a token or a certificate says of him.
    subject: str = ""


class Outcomes:
    """Tells the controller."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        #: Name of a metric -> how often.
        self.counts: Counter[str] = Counter()

    async def good(self, login: Login) -> None:
        """Have it written down that somebody has logged in."""
        self.counts["logins"] += 1
        await self._tell(login, "done")

    async def refused(self, login: Login, reason: str = "", code: int = errors.UNAUTHORIZED) -> None:
        """Have it written down that somebody was refused; nothing in the reason is secret."""
        self.counts["logins_failed"] += 1
        await self._tell(login, code, reason)

    async def _tell(self, login: Login, outcome: str | int, reason: str = "") -> None:
        told: dict[str, Any] = {
            "name": login.name[:TEXT_MAX],
            "address": login.address,
            "method": login.method,
            "outcome": outcome,
        }
        more = {"subject": login.subject[:TEXT_MAX], "reason": reason[:TEXT_MAX]}
        await self._ask("operators.logged_in", told | {name: text for name, text in more.items() if text})
