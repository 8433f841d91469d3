"""A home answers the metrics that it declares, of itself and of a lane."""

from __future__ import annotations

from node.metrics import LANE, SPOOL_OF_WORKER
from tests.unit.declared_metrics import differences
from tests.unit.node.driven_home import LANE as LANE_ID
from tests.unit.node.driven_home import started


def test_a_home_answers_the_metrics_of_its_spool() -> None:
    assert differences(SPOOL_OF_WORKER, started().home.stats()) == []


def test_a_home_answers_the_metrics_of_a_lane() -> None:
    assert differences(LANE, started().ask("endpoint.stats", lane_id=LANE_ID)) == []
