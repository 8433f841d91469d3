"""How the credit of a process is shared out."""

from __future__ import annotations

import random

from gateway.mqtt.sessions.credit import TOTAL_BYTES, WINDOW_BYTES_LEAST, WINDOW_BYTES_MAX, Credit


def test_few_have_large_windows_and_very_many_have_small_ones() -> None:
    credit = Credit()
    sizes = [credit.take() for _ in range(10_000)]
    assert sizes[:1_000] == [WINDOW_BYTES_MAX] * 1_000
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == WINDOW_BYTES_LEAST
    assert credit.given_bytes <= TOTAL_BYTES + 10_000 * WINDOW_BYTES_LEAST


def test_what_is_given_back_is_there_for_others() -> None:
    credit = Credit()
    sizes = [credit.take() for _ in range(5_000)]
    random.Random(1).shuffle(sizes)
    for size in sizes:
        credit.give_back(size)
    assert credit.given_bytes == 0
    assert credit.take() == WINDOW_BYTES_MAX
