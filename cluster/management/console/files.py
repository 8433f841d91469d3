"""The files of the console, read once: a page, and what it is made of below a path that changes with any of them.

What is below /console/VERSION/ never changes, so a browser asks once for each. The page itself, and what has the path
of another version, is asked for each time. Only what is in the folder at the start is given, by its exact path: a path
of a request never leads to a file.

No file needs a login, for none says anything of a node: all that the page shows comes from the API.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiohttp.web import BaseRequest

FOLDER: Final = Path(__file__).parent / "static"
#: The page; `{version}` in it is the version, `{modules}` becomes a link to each module, so that all come at once.
PAGE: Final = "index.html"
#: First piece of the path of the other files.
ROOT: Final = "console"
#: By the end of a name; a file with another end is not given.
TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
#: Digits of a version.
VERSION_LENGTH: Final = 16
#: Scripts, styles and requests of this address alone; nothing in the page itself; nothing that makes markup of a text.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
#: Beside what every answer of the process has.
PAGE_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "X-Frame-Options": "DENY",
}


class File(NamedTuple):
    """A file as it is given."""

    body: bytes
    content_type: str
    etag: str
    #: Whether its path is that of another file as soon as it changes.
    is_fixed: bool


@cache
def files() -> Mapping[tuple[str, ...], File]:
    """Give every file by the pieces of its path."""
    found = {path: path.read_bytes() for path in sorted(FOLDER.rglob("*")) if path.suffix in TYPES}
    version = version_of(found)
    given: dict[tuple[str, ...], File] = {("",): _page(found, version)}
    for path, body in found.items():
        pieces = path.relative_to(FOLDER).parts
        if pieces != (PAGE,):
            given[ROOT, version, *pieces] = File(body, TYPES[path.suffix], _etag(body), is_fixed=True)
    return given


def version_of(found: Mapping[Path, bytes]) -> str:
    """Give what changes with the name or the content of any file."""
    told = hashlib.sha256()
    for path, body in found.items():
        name = path.relative_to(FOLDER).as_posix().encode()
        told.update(b"%d %b %d %b" % (len(name), name, len(body), body))
    return told.hexdigest()[:VERSION_LENGTH]


def _page(found: Mapping[Path, bytes], version: str) -> File:
    modules = [path.relative_to(FOLDER).as_posix() for path in found if path.suffix == ".js"]
    links = [f'<link rel="modulepreload" href="/{ROOT}/{version}/{name}">' for name in modules]
    text = found[FOLDER / PAGE].decode()
    body = text.replace("{modules}", "\n    ".join(links)).replace("{version}", version).encode()
    return File(body, TYPES[".html"], _etag(body), is_fixed=False)


def _etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def find(path: Sequence[str]) -> File | None:
    """Give the file at the pieces of a path; the page is at /."""
    return files().get(tuple(path))


def answer(request: BaseRequest, file: File) -> web.Response:
    """Give a file, or say that the browser has it."""
    kept = "public, max-age=31536000, immutable" if file.is_fixed else "no-cache"
    headers = {"Cache-Control": kept, "ETag": file.etag, **PAGE_HEADERS}
    if file.etag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.body, content_type=file.content_type, charset="utf-8", headers=headers)
