"""An identity provider (OpenID Connect) for tests, over real HTTP: discovery, keys, a login page, and tokens for codes.

It checks what a real one checks: the client and its secret, the address that it sends browsers back to, PKCE, and that
a code comes once. The login page asks nobody for a password.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from tests.integration.token_keys import KeyServer
from tests.token_issuer import jwks

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.server import BaseHTTPRequestHandler

CLIENT, SECRET = "angarium-console", "of the client: for tests %+"
REDIRECT_URI = "https://broker.example/login/oidc/callback"


class Issuer(KeyServer):
    """One realm of it; `mood` is that of the endpoint for tokens."""

    def __init__(self) -> None:
        super().__init__()
        #: Claims of the next tokens, changed; and what signs them, if not as usual.
        self.changed: dict[str, Any] = {}
        self.sign: Callable[[dict[str, Any]], str] = lambda claims: self.makers[0].token(**claims)
        #: What it says of itself, changed.
        self.described: dict[str, Any] = {}
        #: Where it sends browsers back to, and nowhere else.
        self.redirect_uri = REDIRECT_URI
        #: Code -> what was asked for.
        self.codes: dict[str, dict[str, str]] = {}
        self.posts: list[dict[str, str]] = []
        #: Whether its client has no secret.
        self.is_public = False
        #: Whether its login page is one, with a link back, instead of sending the browser back at once.
        self.has_page = False

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}/realm"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        place = urlsplit(handler.path)
        match place.path:
            case "/realm/.well-known/openid-configuration":
                self._json(handler, 200, self._metadata())
            case "/realm/keys":
                self._send(handler, 200, jwks(*self.makers))
            case "/realm/authorize":
                asked = {name: values[0] for name, values in parse_qs(place.query).items()}
                self._show(handler, self._authorized(asked))
            case _:
                handler.send_error(404)

    def posted(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        self.posts.append(form)
        if self.mood != "serve":
            super().answer(handler)
            return
        asked = self.codes.pop(form.get("code", ""), None)
        if not self._is_client(handler, form):
            self._json(handler, 401, {"error": "invalid_client"})
        elif asked is None or not self._fits(asked, form):
            self._json(handler, 400, {"error": "invalid_grant"})
        else:
            self._json(
                handler, 200, {"id_token": self._token(asked), "access_token": "x", "token_type": "Bearer"}
            )

    def _show(self, handler: BaseHTTPRequestHandler, back: str) -> None:
        """Send a browser back, or show it a page that does when somebody clicks."""
        handler.send_response(200 if self.has_page else 302)
        handler.send_header(
            "Content-Type" if self.has_page else "Location", "text/html" if self.has_page else back
        )
        handler.end_headers()
        if self.has_page:
            handler.wfile.write(f'<!doctype html><a href="{html.escape(back)}">I am Anna</a>'.encode())

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize?theme=dark",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "response_types_supported": ["code"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            **self.described,
        }

    def _authorized(self, asked: dict[str, str]) -> str:
        """Give where the browser is sent: back, with a code."""
        assert (asked["client_id"], asked["redirect_uri"]) == (CLIENT, self.redirect_uri)
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        assert "openid" in asked["scope"].split()
        assert asked["theme"] == "dark", "what the endpoint has behind its question mark stays"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": self.issuer}
        return f"{asked['redirect_uri']}?{urlencode(back)}"

    def _is_client(self, handler: BaseHTTPRequestHandler, form: dict[str, str]) -> bool:
        if self.is_public:
            return form["client_id"] == CLIENT and "client_secret" not in form
        if "client_secret" in form:
            return (form["client_id"], form["client_secret"]) == (CLIENT, SECRET)
        given = f"{quote(CLIENT, safe='')}:{quote(SECRET, safe='')}"
        return handler.headers["Authorization"] == f"Basic {base64.b64encode(given.encode()).decode()}"

    def _fits(self, asked: dict[str, str], form: dict[str, str]) -> bool:
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        return (
            form["grant_type"] == "authorization_code"
            and form["redirect_uri"] == asked["redirect_uri"]
            and challenge == asked["code_challenge"]
        )

    def _token(self, asked: dict[str, str]) -> str:
        claims = {"iss": self.issuer, "aud": CLIENT, "sub": "anna-1", "nonce": asked["nonce"], **self.changed}
        return self.sign(claims)

    def _json(self, handler: BaseHTTPRequestHandler, status: int, value: dict[str, Any]) -> None:
        self._send(handler, status, json.dumps(value).encode())

    def _send(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
