"""The configuration of a worker process: every key with its default, its range and a sentence.

The supervisor writes it to the runtime directory; a worker without the file runs with the defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from angarium_server.configuration import within
from angarium_server.process import load_config
from node.endpoints.effort import RATE_DEFAULT_MS
from node.matching.config import MatchingConfig
from node.tracing.config import TracingConfig
from storage.shipping.settings import StandbySettings  # noqa: TC001 - msgspec reads the types of fields

if TYPE_CHECKING:
    import os

#: The file in the runtime directory, and the role as everybody spells it.
ROLE: Final = "worker"
FILE_NAME: Final = f"{ROLE}.json"


class WorkerConfig(MatchingConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a worker process."""

    frames_per_wake: Annotated[
        int, within(1, 10_000, "Frames that a worker handles before its other work gets a turn.")
    ] = 64
    selector_ms_per_s: Annotated[
        int,
        within(
            0,
            1_000,
            "Milliseconds of a worker's time that the selectors of one client username may take in a second; "
            "its flows and topic endpoints with a selector wait for the rest of it. 0: there is no limit.",
        ),
    ] = RATE_DEFAULT_MS


class WorkerRuntime(WorkerConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the supervisor writes for the workers: their section, and their share of the spool."""

    #: Absolute; worker I has the folder I in it. Empty: no guaranteed messages.
    spool_dir: str = ""
    #: Of the data directory: the spool is there and has it, or none yet; empty: the spool is made if it is missing.
    data_id: str = ""
    #: Of the sparse map of one worker's spool.
    spool_map_bytes: int = 1 << 30
    #: Longest time until a settlement is on disk.
    ack_delay_ms: int = 20
    #: Time after which unsettled messages of relaxed endpoints are on disk.
    write_delay_ms: int = 50
    #: Where a copy of the spool is kept; None: nowhere.
    standby: StandbySettings | None = None
    #: Spans, and the node that they are of.
    tracing: TracingConfig = TracingConfig()
    node: str = ""


def load(runtime_dir: str | os.PathLike[str]) -> WorkerRuntime:
    """Read the configuration in a runtime directory, or give the defaults if there is none.

    Raises:
        InvalidRequestError: the file does not fit (40017).
    """
    if not (Path(runtime_dir) / FILE_NAME).exists():
        return WorkerRuntime()
    return load_config(runtime_dir, ROLE, WorkerRuntime)
