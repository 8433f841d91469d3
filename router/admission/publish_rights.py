"""Publish rules judged by the router: for messages that are sent again.

Workers judge publish rules, and take out what they deny; so the router would not know where such a message goes. Of one
that may have been stored before, it has to: what endpoints hold keeps its verdict, whatever the rules say now. So
rounds that may hold such messages are matched without rules, and judged here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium_server.access import TopicRules, may_publish
from router.matching.rows import decode_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The number of rules that allow everything.
EVERYTHING: Final = 0
#: Lists of rules that are kept ready; more start over.
_READY_MAX: Final = 64


class PublishRights:
    """The publish rules of the workers, for the few messages that the router judges."""

    def __init__(self, rules: Mapping[int, tuple[bool, tuple[str, ...]]]) -> None:
        """Begin; `rules` are those that the workers know: number -> default action and exceptions."""
        self._rules = rules
        #: Number -> the same, ready to be asked. A number is never used for another list.
        self._ready: dict[int, TopicRules] = {}

    def denied(self, rules_id: int, batches: list[bytes]) -> dict[int, str]:
        """Give index -> topic of the rows that may not be published under these rules."""
        if rules_id == EVERYTHING:
            return {}
        rules = self._find(rules_id)
        verdicts: dict[str, bool] = {}
        found: dict[int, str] = {}
        for batch in batches:
            for row in decode_rows(batch):
                allowed = verdicts.get(row.topic)
                if allowed is None:
                    allowed = verdicts[row.topic] = may_publish(rules, row.topic)
                if not allowed:
                    found[row.index] = row.topic
        return found

    def _find(self, rules_id: int) -> TopicRules | None:
        ready = self._ready.get(rules_id)
        known = self._rules.get(rules_id)
        if ready is None and known is not None:
            if len(self._ready) >= _READY_MAX:
                self._ready.clear()
            ready = self._ready[rules_id] = TopicRules(known[1], default_allow=known[0])
        return ready
