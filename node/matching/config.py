"""The settings of matching: every key with its default, its range and a sentence; a part of those of a worker."""

from __future__ import annotations

from typing import Annotated

import msgspec

from angarium.topic_cache import TOPIC_CACHE_MAX
from angarium_server.configuration import within


class MatchingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of matching."""

    topic_cache_max: Annotated[
        int, within(1, 10_000_000, "Topics per Message VPN whose matches a worker caches.")
    ] = TOPIC_CACHE_MAX
    topic_cache_bytes: Annotated[
        int,
        within(
            1 << 16, 1 << 36, "Bytes of these topics and their sets of matching filters, per Message VPN."
        ),
    ] = 96 << 20
    max_message_bytes: Annotated[
        int, within(1024, 64 << 20, "Set by max_message_bytes of the router; a value here has no effect.")
    ] = 10_000_000
    matching_step_nodes: Annotated[
        int,
        within(
            1,
            1_000_000,
            "Nodes of the tree of filters that a worker visits before its other work gets a turn; "
            "5,000 take about 2 ms.",
        ),
    ] = 5_000
    max_matching_work: Annotated[
        int,
        within(
            1_000,
            1_000_000_000,
            "Nodes beyond 256 per topic that one batch may cost; "
            "rows whose topics are not matched by then are refused (42903).",
        ),
    ] = 4_000_000
