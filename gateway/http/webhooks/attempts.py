"""What becomes of a message after an attempt to POST it: accepted, rejected, or tried again, and when.

2xx accepts. Codes that say that it will never be taken reject, to the dead message queue. All else is tried again: a
code that means a mistake in the message and one that means a mistake in the configuration of a target look the same.

No I/O; time and chance are parameters.
"""

from __future__ import annotations

import enum
import math
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

#: 410 Gone: the target wants nothing more.
GONE: Final = 410
#: 2.0 to the power of more than 1,023 is an error; no limit is that many doublings away.
DOUBLINGS_MAX: Final = 64


class Verdict(enum.Enum):
    """What becomes of the message."""

    ACCEPT = "accept"
    REJECT = "reject"
    RETRY = "retry"


class Rules(NamedTuple):
    """What a webhook is configured with, of what decides here."""

    first_delay_s: float = 1.0
    longest_delay_s: float = 300.0
    permanent: frozenset[int] = frozenset({GONE})
    #: 0: as many as it takes.
    attempts_max: int = 0


class Answer(NamedTuple):
    """What came of an attempt: a code, or None if there was no answer."""

    code: int | None
    retry_after: str = ""
    #: Why there was none, in a few words: it is shown, so it holds nothing of URL and answer.
    failure: str = ""

    def __str__(self) -> str:
        return self.failure if self.code is None else f"answered {self.code}"


def verdict_of(rules: Rules, answer: Answer, attempts: int = 1) -> Verdict:
    """No answer is no refusal: the target may have taken the message, so it is tried again with the same id."""
    if answer.code is not None and 200 <= answer.code < 300:
        return Verdict.ACCEPT
    is_last = 0 < rules.attempts_max <= attempts
    return Verdict.REJECT if is_last or answer.code in rules.permanent else Verdict.RETRY


def delay_of(rules: Rules, failures: int, answer: Answer, now: float, chance: float) -> float:
    """Seconds until the next attempt, after so many failures in a row (1 or more); chance is from 0 to 1.

    What the target asks for makes it longer and never shorter, and nothing is longer than the longest: a target may not
    stop a queue for days.
    """
    doublings = min(failures - 1, DOUBLINGS_MAX)
    limit = min(rules.first_delay_s * 2.0**doublings, rules.longest_delay_s)
    own = limit * (0.5 + chance / 2)
    return min(max(own, asked_for(answer.retry_after, now)), rules.longest_delay_s)


def asked_for(retry_after: str, now: float) -> float:
    """The seconds of a `Retry-After`: a number or a date. What is neither asks for nothing."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text)  # Of too many digits: infinity, which the longest delay bounds.
    try:
        seconds = parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0
