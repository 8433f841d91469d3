"""Runs one seed with guaranteed messages and tells its story.

    python -m tests.simulation.guaranteed.tell SEED [WHAT ...]

With names of messages (`g17`) it tells everything that happened to them, whether a rule was broken or not. `m17` as the
seed is number 17 of the worlds of several nodes.
"""

from __future__ import annotations

import sys

from tests.simulation import failure_story, simulate


def main(seed: str, whats: list[str]) -> None:
    """Run the seed and print."""
    world = simulate.MESH if seed.startswith("m") else simulate.GUARANTEED
    outcome = simulate.PLAYS[world][1](simulate.name_of(0, int(seed.removeprefix("m")), world))
    print(failure_story.tell(outcome))
    for what in whats:
        print(f"\n{what}:")
        for at, text in failure_story.life_of(outcome, what):
            print(f"    {at:9.4f} {text}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
