"""Answers of resources: pages of lists, objects with their ETags, what is new and where it is.

The ETag of an object is made of all that is shown of it, so it changes with each change. The controller compares it in
the step that changes the object: what somebody else did in between is never lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from aiohttp import web

from angarium import errors
from angarium_server.http import bodies
from angarium_server.http.origins import target_in
from cluster.management.api import pages
from cluster.management.api.routes import (
    COMPARING,
    Found,
    Route,
    Shape,
    Target,
    arguments_of,
    jobs_path,
    piece_of,
)
from cluster.objects import version_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from aiohttp.web import BaseRequest

    Ask = Callable[[str, dict[str, Any]], Coroutine[Any, Any, Any]]


async def answer(
    request: BaseRequest,
    target: Target,
    found: tuple[Found, Route],
    body: dict[str, Any],
    ask: Ask,
    page: Callable[[str, dict[str, Any], pages.Wanted], Awaitable[pages.Page]],
) -> web.Response:
    """Do what a route says, and answer in its form; `page` gives pages of lists.

    Raises:
        AngariumError: it is refused.
    """
    (_, values), route = found
    wanted = pages.wanted_of(target.query) if route.shape is Shape.ROWS else None
    arguments = arguments_of(route, values, target.query, body)
    if "If-Match" in request.headers:
        arguments["version"] = _version_in(request.headers["If-Match"], route)
    if wanted is None:
        return _shaped(request, route, await ask(route.operation, arguments))
    return _rows(request, target, await page(route.operation, arguments, wanted))


async def page_of(operation: str, arguments: dict[str, Any], wanted: pages.Wanted, ask: Ask) -> pages.Page:
    """Give a page of what an operation lists.

    Raises:
        AngariumError: it is refused.
    """
    if wanted.fields and operation == "endpoints.list":
        return await _page_of_endpoints(arguments, wanted, ask)
    return pages.page_of(await ask(operation, arguments), wanted)


async def _page_of_endpoints(arguments: dict[str, Any], wanted: pages.Wanted, ask: Ask) -> pages.Page:
    """Give a page of endpoints: of all of them only what decides is asked for, and the rest of those on the page.

    Of ten thousand queues a dozen columns take the node three times as long.
    """
    deciding = await ask("endpoints.list", {**arguments, "fields": wanted.deciding})
    page = pages.page_of(deciding, wanted._replace(fields=()))
    these = [(row["vpn"], row["name"]) for row in page.rows]
    if not these:
        return page
    rows = await ask("endpoints.list", {**arguments, "fields": wanted.shown, "these": these})
    found = {(row["vpn"], row["name"]): row for row in rows}
    told = [{**found[key], **row} for key, row in zip(these, page.rows, strict=True) if key in found]
    return page._replace(rows=[pages.with_fields(row, wanted.fields) for row in told])


def _shaped(request: BaseRequest, route: Route, value: Any) -> web.Response:
    match route.shape:
        case Shape.NOTHING:
            return web.Response(status=204)
        case Shape.JOBS:
            return bodies.answer(request, value, 202, Location=jobs_path(value["jobs"]))
        case Shape.OBJECT:
            etag = f'"{version_of(value)}"'
            if etag in request.headers.get("If-None-Match", "") and request.method in ("GET", "HEAD"):
                return web.Response(status=304, headers={"ETag": etag})
            return bodies.answer(request, value, ETag=etag)
        case Shape.MADE:
            location = f"{target_in(request).partition('?')[0]}/{piece_of(value['name'])}"
            return bodies.answer(request, value, 201, ETag=f'"{version_of(value)}"', Location=location)
    return bodies.answer(request, value)


def _rows(request: BaseRequest, target: Target, page: pages.Page) -> web.Response:
    headers = {"Total-Count": str(page.total)}
    if page.cursor:
        query = urlencode({**target.query, "after": [page.cursor]}, doseq=True)
        headers["Link"] = f'<{target_in(request).partition("?")[0]}?{query}>; rel="next"'
    return bodies.answer(request, page.rows, 200, **headers)


def _version_in(header: str, route: Route) -> str:
    """Give the version that If-Match names.

    Raises:
        InvalidRequestError: it names none, or nothing is compared there (40018).
    """
    text = header.strip()
    if route.operation not in COMPARING:
        raise errors.invalid("If-Match is for PATCH and DELETE of an object", "leave it out")
    if len(text) < 3 or not (text.startswith('"') and text.endswith('"')):
        raise errors.invalid(f"If-Match: {text[:50]!r} is no ETag", "send that of the last GET")
    return text[1:-1]
