"""Operators who are known by what somebody else says of them: the subject of a token, the name in a certificate.

Who that is, and whether he may come in, is asked of the controller each time, so what changes there counts at once. A
login is written down when it is the first of a minute from its network.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal

from angarium import errors
from angarium_server.access import network_of
from cluster.management.access.outcomes import TEXT_MAX, Operator
from cluster.management.access.remembered import Remembered

if TYPE_CHECKING:
    from cluster.management.access.outcomes import Ask, Login, Outcomes

#: The attributes of operators by which they are found.
Attribute = Literal["token_subject", "certificate_name"]

_ADVICE: Final = "'angarium operator update NAME --set {attribute}=...' on the node's host says whose it is"


class Subjects:
    """Finds operators."""

    def __init__(self, ask: Ask, outcomes: Outcomes) -> None:
        self._ask = ask
        self._outcomes = outcomes
        self._remembered = Remembered()

    async def find(self, attribute: Attribute, value: str) -> Operator | None:
        """Give the operator of whom an attribute has this value; None if there is none, or he is disabled."""
        if not 0 < len(value) <= TEXT_MAX:
            return None
        try:
            found = await self._ask("operators.find", {attribute: value})
        except errors.NotFoundError:
            return None
        return Operator.of(found) if found["enabled"] else None

    async def log_in(self, attribute: Attribute, login: Login, *shown: str) -> Operator:
        """Give the operator, and have it written down, unless the same was shown a moment ago.

        Args:
            attribute: what its subject is of an operator.
            login: with the subject.
            shown: what makes it the same; nothing: it is written down in any case.

        Raises:
            UnauthorizedError: nobody who may come in has this subject (40101).
        """
        operator = await self.find(attribute, login.subject)
        if operator is None:
            reason = f"no operator who is enabled has the {attribute} {login.subject[:64]!r}"
            await self._outcomes.refused(login, reason)
            raise errors.error_for(errors.UNAUTHORIZED, reason, _ADVICE.format(attribute=attribute))
        what = (login.method, operator.name, network_of(login.address), *shown)
        if not (shown and self._remembered.has(*what, now=time.monotonic())):
            await self._outcomes.good(login._replace(name=operator.name))
            self._remembered.add(*what, now=time.monotonic())
        return operator
