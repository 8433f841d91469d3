"""What every key of the configuration says of itself: a sentence, and its range if it is a number."""

from __future__ import annotations

from msgspec import Meta


def about(sentence: str) -> Meta:
    """Attach a sentence to a key."""
    return Meta(description=sentence)


def within(least: float, most: float, sentence: str) -> Meta:
    """Attach a sentence to a key that is a number in a range."""
    return Meta(ge=least, le=most, description=sentence)
