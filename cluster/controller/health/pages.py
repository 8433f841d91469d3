"""The pages of the health endpoint: which there are, and how a report reads.

    /healthz     200 while the node is alive; if it is not, restart it
    /readyz      200 while clients may come
    /startupz    200 once it was ready since `angarium up`
    /metrics     200 always: the metrics of the node, as cluster/controller/health/metrics.py writes them

The first three have a line per check with `?verbose`, and without it too when one fails, in the form that the health
endpoints of Kubernetes have (https://kubernetes.io/docs/reference/using-api/health-checks/): eyes and scripts know it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from angarium_server.http.exposition import CONTENT_TYPE
from angarium_server.visible import visible
from cluster.controller.health.checks import passed
from cluster.controller.health.http import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.controller.health.checks import Check, Health
    from cluster.controller.health.http import Request

METRICS: Final = "/metrics"
PAGES: Final[dict[str, Callable[[Health], list[Check]]]] = {
    "/healthz": lambda health: health.live,
    "/readyz": lambda health: [*health.live, *health.ready],
    "/startupz": lambda health: health.started,
}


def page(request: Request, health: Health, metrics: Callable[[], str]) -> Answer:
    """Give the answer to a request; `metrics` gives the page of metrics."""
    if request.path == METRICS:
        return Answer(HTTPStatus.OK, metrics(), CONTENT_TYPE)
    choose = PAGES.get(request.path)
    if choose is None:
        return Answer(HTTPStatus.NOT_FOUND, f"there are {', '.join([*PAGES, METRICS])}\n")
    checks = choose(health)
    good = passed(checks)
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    if good and "verbose" not in request.query:
        return Answer(status, "ok\n")
    lines = [_line(check) for check in checks]
    if request.path == "/readyz":
        lines += [_link_line(link) for link in health.links]
    verdict = f"{request.path.removeprefix('/')} check {'passed' if good else 'failed'}"
    return Answer(status, "\n".join([*lines, verdict, ""]))


def _link_line(link: Check) -> str:
    return f"[{'+' if link.ok else ' '}]link {visible(link.name)}: {visible(link.text)}"


def _line(check: Check) -> str:
    return f"[+]{check.name} ok" if check.ok else f"[-]{check.name} {visible(check.text)}"
