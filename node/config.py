"""The configuration of a worker process: every key with its default, its range and a sentence.

The supervisor writes it to the runtime directory; a worker without the file runs with the defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from angarium.process import load_config
from angarium.trie import TOPIC_CACHE_MAX

if TYPE_CHECKING:
    import os

#: The file in the runtime directory, and the role as everybody spells it.
ROLE: Final = "worker"
FILE_NAME: Final = f"{ROLE}.json"


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker process is told at its start."""

    topic_cache_max: Annotated[
        int,
        Meta(ge=1, le=10_000_000, description="Topics per Message VPN whose matches a worker remembers."),
    ] = TOPIC_CACHE_MAX
    max_message_bytes: Annotated[
        int,
        Meta(
            ge=1024, le=64 << 20, description="Follows max_message_bytes of the router, whatever stands here."
        ),
    ] = 10_000_000
    frames_per_wake: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Frames that a worker takes before it looks at its other duties."),
    ] = 64


class WorkerRuntime(WorkerConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the supervisor writes for the workers: their section, and their share of the spool."""

    #: Absolute; worker I has the folder I in it. Empty: no guaranteed messages.
    spool_dir: str = ""
    #: Of the sparse map of one worker's spool.
    spool_map_bytes: int = 1 << 30
    #: Its share of the node's limit of messages that are delivered and not settled (R195).
    max_delivered_unacked: int = 1_000_000
    #: Settled messages are on disk after so long at the latest.
    ack_delay_ms: int = 20
    #: Messages of relaxed endpoints that nobody settled are on disk after so long.
    write_delay_ms: int = 50


def load(runtime_dir: str | os.PathLike[str]) -> WorkerRuntime:
    """Read the configuration in a runtime directory, or give the defaults if there is none.

    Raises:
        InvalidRequestError: the file does not fit (40017).
    """
    if not (Path(runtime_dir) / FILE_NAME).exists():
        return WorkerRuntime()
    return load_config(runtime_dir, ROLE, WorkerRuntime)
