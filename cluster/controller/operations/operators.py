"""The operations about who somebody is: for the management process, which lets operators log in, and for themselves.

    operation               arguments                           answer
    operators.credentials   name                                {"name", "role", "vpn", "enabled", "vpns", "password",
                                                                "password_set"}: a hash
    operators.find          certificate_name or token_subject   {"name", "role", "vpn", "enabled", "vpns"}
    operators.logged_in     name, address, method, outcome,     None: how a login ended is written down
                            subject, reason
    operators.me                                                {"name", "role", "vpn"} of who asks

The hash of an operator who does not exist costs as much as one of one who does, and no password fits, so that a login
does not tell who exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors
from cluster.controller.access.audit_log import DONE, LOGIN, Deed
from cluster.controller.access.callers import Who
from cluster.security.passwords import unfitting

if TYPE_CHECKING:
    from cluster.admin import arguments
    from cluster.controller.access.callers import Callers
    from cluster.controller.switchboard.switchboard import AdminAsker, Handlers, Switchboard


class OperatorOperations:
    """What operators are asked at a login, and what becomes of it."""

    def __init__(self, board: Switchboard, callers: Callers) -> None:
        self._board = board
        self._callers = callers
        #: Rises with Message VPNs that are deleted; no other controller has begun with it.
        self._first_vpns = board.new_number()
        self.operations: Handlers = {
            "operators.credentials": self._credentials,
            "operators.find": self._find,
            "operators.logged_in": self._logged_in,
            "operators.me": self._me,
        }

    def _credentials(self, request: arguments.OperatorArguments, asker: AdminAsker, _now: float) -> None:
        known = self._callers.operator(request.name) or {}
        password = known.get("password")
        told = {"password": password or unfitting(), "password_set": bool(password)}
        self._board.reply(asker, {**self._found(request.name), **told})

    def _found(self, name: str) -> dict[str, Any]:
        """Give what is told of an operator, whether he exists or not."""
        known = self._callers.operator(name) or {}
        return {
            "name": name,
            "role": known.get("role", ""),
            "vpn": known.get("vpn", ""),
            "enabled": known.get("enabled", False),
            "vpns": self._first_vpns + self._callers.vpns_deleted,
        }

    def _find(self, request: arguments.FindOperatorArguments, asker: AdminAsker, _now: float) -> None:
        sought = [
            ("certificate_name", request.certificate_name),
            ("token_subject", request.token_subject),
        ]
        given = [(attribute, value) for attribute, value in sought if value]
        if len(given) != 1:
            raise errors.invalid("name either a certificate_name or a token_subject")
        name = self._callers.find(*given[0])
        if name is None:
            detail = f"an operator with {given[0][0]} = {given[0][1]!r}"
            raise errors.error_for(errors.OBJECT_NOT_FOUND, detail)
        self._board.reply(asker, self._found(name))

    def _logged_in(self, request: arguments.LoggedInArguments, asker: AdminAsker, _now: float) -> None:
        if request.outcome != DONE:
            named = f"operator {request.name!r}" if request.name else f"{request.subject!r}"
            text = f"{named} could not log in by {request.method} from {request.address}: {request.outcome}"
            text += f", {request.reason}" if request.reason else ""
            source = ("address", "", request.address)
            self._board.record_system("warning", "SYSTEM_OPERATOR_LOGIN_FAILED", text, source)
        known = self._callers.operator(request.name) or {}
        who = Who(request.name, known.get("role", ""), known.get("vpn", ""), "management", request.address)
        told = {
            "method": request.method,
            "subject": request.subject or None,
            "reason": request.reason or None,
        }
        login = Deed(who, LOGIN, told)
        self._board.write_down(asker._replace(deed=login), request.outcome)
        self._board.reply(asker, None)

    def _me(self, _request: arguments.NoArguments, asker: AdminAsker, _now: float) -> None:
        name, role, vpn, *_ = asker.who
        self._board.reply(asker, {"name": name, "role": role, "vpn": vpn})
