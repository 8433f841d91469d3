"""How many descriptors a process may have: each connection is one."""

from __future__ import annotations

import errno
import resource
from typing import Final

#: Why no connection can be accepted although one has come: the process, or the system, has no room for it.
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: So long nobody is accepted then: the listener would signal for ever.
REST_S: Final = 0.2


def raise_descriptors(wanted: int) -> int:
    """Have the system allow this process so many descriptors, or as many as it may; gives what it allows now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
