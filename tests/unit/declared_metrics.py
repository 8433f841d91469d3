"""Whether a part of a node answers what it declares as its metrics: all of that, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from angarium_server.frames.metrics import Metrics


def differences(metrics: Metrics, answer: Mapping[str, object], elsewhere: Collection[str] = ()) -> list[str]:
    """Name what is answered and not declared, or not as what it is declared, and what is declared and not answered.

    `elsewhere` are those that something else answers, which must not be here.
    """
    declared = {metric.name: metric for metric in metrics}
    wrong = [name for name in answer if name not in declared or name in elsewhere]
    for name, metric in declared.items():
        if metric.kind and name not in elsewhere:
            value = answer.get(name)
            # A number that is not known is None.
            expected = dict if metric.label else (int, float) if value is not None else type(None)
            wrong += [name] if name not in answer or not isinstance(value, expected) else []
    return sorted(wrong)
