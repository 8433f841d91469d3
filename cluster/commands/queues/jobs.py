"""Waiting for jobs: what homes do in the background is polled, with a progress bar on a terminal.

A job goes on when whoever waits for it is interrupted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from cluster.commands.terminal.output import progress

if TYPE_CHECKING:
    from cluster.admin.client import Admin

#: Between two looks at a job; small ones are done at the first.
POLL_S: Final = 0.1
RUNNING: Final = "running"
FAILED: Final = "failed"


def wait_for(connection: Admin, jobs: list[list[int]], description: str) -> dict[str, Any]:
    """Give what jobs came to, when all of them have ended.

    Raises:
        AngariumError: what ended one of them.
        UnavailableError: a worker does not answer (50320).
    """
    found: dict[str, Any] = connection.call("jobs.show", jobs=jobs)
    with progress(description, found["total"] or None) as show:
        while found["state"] == RUNNING:
            show(found["done"])
            time.sleep(POLL_S)
            found = connection.call("jobs.show", jobs=jobs)
    if found["state"] == FAILED:
        code, detail = found["error"] or [errors.INTERNAL, "a job failed without a word"]
        raise errors.error_for(code, detail)
    return found
