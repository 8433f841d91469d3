"""What a browser asks for to log in by OpenID Connect: /login/oidc, and where the issuer sends it back to.

A person looks at the answers, so they are pages where a browser asks; and the last one is a page that leads on, no
redirect: the cookie of a session goes with requests of our own pages alone, and a redirect is still of the issuer's.
Nothing of a request says where a browser goes next.
"""

from __future__ import annotations

import html
import time
from typing import TYPE_CHECKING, Final

from aiohttp import web

from angarium import errors
from angarium.errors import AngariumError, error_for
from angarium_server.access import network_of
from angarium_server.http.origins import origin_of
from angarium_server.http.problems import RefusedError, problem_of
from angarium_server.tokens.claims import text_claim
from angarium_server.tokens.config import TokenIssuer
from cluster.management.access.attempts import ADDRESS_BURST, ADDRESS_PER_S, Failures
from cluster.management.access.browsers import CHALLENGE, cookie_name, set_cookie
from cluster.management.access.outcomes import Login
from cluster.management.access.verifier import Verifier
from cluster.management.openid.provider import Provider
from cluster.management.openid.sign_on import LOGIN_S, SignOn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiohttp.web import BaseRequest

    from angarium_server.connections.tls import Peer
    from angarium_server.tokens.keys import KeyRow
    from cluster.configuration.management import OidcSection
    from cluster.management.access.browsers import Browsers
    from cluster.management.access.outcomes import Outcomes
    from cluster.management.access.subjects import Subjects
    from cluster.management.openid.sign_on import Returned

PATH: Final = ("login", "oidc")
CALLBACK: Final = (*PATH, "callback")

_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8">{head}<title>{title}</title>'
    '<h1>{title}</h1><p>{text}</p><p><a href="/">Continue</a></p></html>'
)
_ONWARD: Final = '<meta http-equiv="refresh" content="0;url=/">'


class Pages:
    """Logins at one issuer."""

    def __init__(
        self,
        section: OidcSection,
        public_url: str,
        outcomes: Outcomes,
        subjects: Subjects,
        browsers: Browsers,
    ) -> None:
        self._outcomes = outcomes
        self._subjects = subjects
        self._browsers = browsers
        self._redirect_uri = "/".join((origin_of(public_url), *CALLBACK))
        self._sign_on = SignOn(section, self._redirect_uri)
        self._provider = Provider(section)
        issuer = TokenIssuer(
            name="oidc",
            issuer=section.issuer,
            audience=[section.client_id],
            algorithms=section.algorithms,
            clock_skew_s=section.clock_skew_s,
            username_claim=section.operator_claim,
        )
        self._verifier = Verifier([issuer], self._keys)
        #: By network: answers that led nowhere, for each may cost a request to the issuer.
        self._failures = Failures(ADDRESS_BURST, ADDRESS_PER_S)

    async def answer(
        self, request: BaseRequest, path: Sequence[str], query: Mapping[str, Sequence[str]], peer: Peer
    ) -> web.Response:
        """Answer a browser.

        Raises:
            RefusedError: it does not log in, and it is a program that asks.
        """
        try:
            if tuple(path) == PATH:
                return await self._begin(request, peer)
            return await self._finish(request, query, peer)
        except AngariumError as error:
            if "text/html" not in request.headers.get("Accept", ""):
                raise RefusedError(error, CHALLENGE) from None
            return _refusal(error)

    async def close(self) -> None:
        """Ask nobody any more."""
        await self._provider.close()

    async def _begin(self, request: BaseRequest, peer: Peer) -> web.Response:
        """Send a browser to the issuer."""
        try:
            metadata = await self._provider.metadata()
        except errors.UnavailableError as error:
            await self._outcomes.refused(Login("oidc", peer.address), error.detail, error.code)
            raise
        cookie, begun = self._sign_on.begin(time.monotonic())
        address = self._sign_on.address(metadata.authorization_endpoint, begun)
        response = web.Response(status=302, headers={"Location": address})
        # The browser comes back from a page of the issuer, so the cookie has to go with a link of others (Lax).
        set_cookie(response, _begun_cookie(request, peer), cookie, peer, int(LOGIN_S), "Lax")
        return response

    async def _finish(
        self, request: BaseRequest, query: Mapping[str, Sequence[str]], peer: Peer
    ) -> web.Response:
        """Take a browser that is back."""
        network, name = network_of(peer.address), _begun_cookie(request, peer)
        if not self._failures.take(network, time.monotonic()):
            detail = "too many logins from this address have failed"
            raise error_for(errors.CONNECT_RATE_EXCEEDED, detail, "wait a minute, and try again")
        try:
            returned = self._sign_on.finish(request.cookies.get(name, ""), query, time.monotonic())
            subject = await self._subject(returned)
        except (errors.UnauthorizedError, errors.UnavailableError) as error:
            await self._outcomes.refused(Login("oidc", peer.address), error.detail, error.code)
            raise
        login = Login("oidc", peer.address, subject=subject)
        operator = await self._subjects.log_in("token_subject", login)
        self._failures.give_back(network)
        response = _page("You are logged in", f"as {operator.name}", _ONWARD)
        session = self._browsers.sessions.begin(operator.name, subject, time.monotonic(), "oidc")
        self._browsers.keep(request, response, session, peer)
        set_cookie(response, name, "", peer, 0, "Lax")
        return response

    async def _subject(self, returned: Returned) -> str:
        """Give whom the token is of that the code stands for.

        Raises:
            UnauthorizedError: it does not count (40101).
            UnavailableError: the issuer does not answer (50332).
        """
        code, begun = returned
        token = await self._provider.exchange(code, begun.verifier, self._redirect_uri)
        found = await self._verifier.verified(token)
        self._sign_on.check(found.claims, begun)
        return text_claim(found.claims, found.issuer.username_claim)

    async def _keys(self, _issuer: TokenIssuer, is_unknown: bool) -> Sequence[KeyRow]:  # noqa: FBT001 - the form of Fetch
        return await self._provider.keys(is_unknown=is_unknown)


def _begun_cookie(request: BaseRequest, peer: Peer) -> str:
    return f"{cookie_name(request, peer)}-oidc"


def _refusal(error: AngariumError) -> web.Response:
    problem = problem_of(error)
    text = ": ".join(part for part in (problem.detail, problem.advice) if part)
    response = _page(f"{problem.title} ({problem.code})", text)
    response.set_status(problem.status)
    return response


def _page(title: str, text: str, head: str = "") -> web.Response:
    body = _PAGE.format(head=head, title=html.escape(title), text=html.escape(text))
    return web.Response(text=body, content_type="text/html")
