"""Keys of issuers, and who serves them."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.token_issuer import TokenMaker, jwks

if TYPE_CHECKING:
    import ssl


class KeyServer:
    """Serves keys on a port that stays the same, also when nobody is behind it for a while."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        #: What encrypts connections that come from now on.
        self.context = context
        self.makers: list[TokenMaker] = [TokenMaker("ES256")]
        #: What it does: serve, or one of `slow`, `drip`, `wrong`, `huge`, `error`, `redirect`.
        self.mood = "serve"
        self.asked = 0
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked += 1
                owner.answer(self)

            def do_POST(self) -> None:
                owner.asked += 1
                owner.posted(self)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def get_request(self) -> Any:
                # A handshake that fails is an OSError, which the server passes over.
                made, address = super().get_request()
                return (owner.context.wrap_socket(made, server_side=True) if owner.context else made), address

        self._server = Server(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}/keys"

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def posted(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a POST: nothing is to be posted here."""
        handler.send_error(405)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = jwks(*self.makers)
        if self.mood in ("error", "redirect"):
            handler.send_response(500 if self.mood == "error" else 302)
            handler.send_header("Location", f"http://127.0.0.1:{self.port}/other")
            handler.end_headers()
            return
        if self.mood == "wrong":
            body = b"<html>come back later</html>"
        if self.mood == "huge":
            body = b" " * 1_000_000
        if self.mood == "slow":
            time.sleep(3)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        try:
            if self.mood == "drip":
                for byte in body[:200]:
                    handler.wfile.write(bytes([byte]))
                    handler.wfile.flush()
                    time.sleep(0.3)
                return
            handler.wfile.write(body)
        except OSError:
            pass  # the node has given up
