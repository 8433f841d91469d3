"""What operators see of the sessions, and what their changes mean for them.

The controller forwards requests here. An object that changes is in force at once: sessions under it get
their rights anew, or end if they may not be here any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors
from angarium.errors import AngariumError, error_for
from router.admission.subscriptions import describe_subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.admission.directory import Directory, Vpn
    from router.admission.rights import Rights
    from router.admission.session_table import SessionTable
    from router.session import Session


class Operators:
    """Requests of operators about objects, clients and subscriptions."""

    def __init__(
        self,
        directory: Directory,
        sessions: SessionTable,
        rights: Rights,
        close: Callable[[Session, AngariumError, float], None],
        forget_vpn: Callable[[Vpn], None],
    ) -> None:
        self._directory = directory
        self._sessions = sessions
        self._rights = rights
        self._close = close
        self._forget_vpn = forget_vpn

    def configure(self, rows: list[list[Any]], now: float) -> None:
        """Take a whole snapshot of [kind, vpn, name, attributes]; what is not in it is gone."""
        directory = self._directory
        wanted = {(kind, "" if kind == "vpn" else vpn, name) for kind, vpn, name, _ in rows}
        for key in directory.object_keys():
            if key not in wanted:
                self._drop(*key)
        for kind, vpn, name, attributes in sorted(rows, key=_vpns_first):
            directory.put(kind, vpn, name, attributes)
        directory.complete = True
        self._review(list(self._sessions), now)

    def put_object(self, kind: str, vpn: str, name: str, attributes: dict[str, Any], now: float) -> None:
        """An operator created or changed an object."""
        self._review_vpn(self._directory.put(kind, vpn, name, attributes), now)

    def drop_object(self, kind: str, vpn: str, name: str, now: float) -> None:
        """An operator deleted an object."""
        self._review_vpn(self._drop(kind, vpn, name), now)

    def _drop(self, kind: str, vpn_name: str, name: str) -> Vpn | None:
        vpn = self._directory.drop(kind, vpn_name, name)
        if kind == "vpn" and vpn is not None:
            self._forget_vpn(vpn)
        return vpn

    def _review_vpn(self, vpn: Vpn | None, now: float) -> None:
        if vpn is not None:
            self._review([session for session in self._sessions if session.vpn is vpn], now)

    def _review(self, sessions: list[Session], now: float) -> None:
        for session in sessions:
            vpn = session.vpn
            username = vpn.usernames.get(session.username)
            if self._directory.vpns.get(vpn.name) is not vpn or not vpn.enabled:
                self._close(session, error_for(errors.VPN_UNAVAILABLE, vpn.name), now)
            elif username is None or not username.enabled:
                self._close(session, error_for(errors.USERNAME_SHUTDOWN, session.username), now)
            elif not self._rights.grant(session, now):
                self._close(
                    session, error_for(errors.CLIENT_CONNECT_DENIED, "a profile of the username is gone"), now
                )

    def clients(self, vpn: str | None, now: float) -> list[dict[str, Any]]:
        """List connected clients."""
        return [s.describe(now) for s in self._sessions if vpn is None or s.vpn.name == vpn]

    def client(self, vpn: str, name: str, now: float) -> dict[str, Any]:
        """Describe one client with its subscriptions.

        Raises:
            ForbiddenError: there is no such client (40307).
        """
        session = self._find(vpn, name)
        texts = [describe_subscription(session, one) for one in session.subscriptions.values()]
        return {**session.describe(now), "subscription_list": texts}

    def subscriptions(self, vpn: str | None, client: str | None) -> list[dict[str, Any]]:
        """List subscriptions (R87)."""
        return [
            describe_subscription(session, subscription)
            for session in self._sessions
            if (vpn is None or session.vpn.name == vpn) and (client is None or session.client_name == client)
            for subscription in session.subscriptions.values()
        ]

    def disconnect(self, vpn: str, name: str, now: float) -> None:
        """End a session.

        Raises:
            ForbiddenError: there is no such client (40307).
        """
        self._close(self._find(vpn, name), error_for(errors.DISCONNECTED_BY_OPERATOR), now)

    def _find(self, vpn: str, name: str) -> Session:
        session = self._sessions.find(vpn, name)
        if session is None:
            raise error_for(errors.UNKNOWN_CLIENT_NAME, name)
        return session


def _vpns_first(row: list[Any]) -> bool:
    return bool(row[0] != "vpn")
