"""Runs one seed with guaranteed messages and tells its story: `python -m guaranteed.tell SEED [WHAT ...]`.

With names of messages (`g17`) it tells everything that happened to them, whether a rule was broken or not.
"""

from __future__ import annotations

import sys

import failure_story
import simulate

from guaranteed import guaranteed_scenario, guaranteed_story


def main(seed: str, whats: list[str]) -> None:
    """Run the seed and print."""
    outcome = guaranteed_scenario.run(simulate.name_of(0, int(seed), "guaranteed"))
    assert outcome.guaranteed is not None
    print(failure_story.tell(outcome))
    for what in whats:
        story = [*guaranteed_story.life_of(outcome.guaranteed, what)]
        story += guaranteed_story.endpoints(outcome.guaranteed, what)
        print(f"\n{what}:")
        for at, text in sorted(dict.fromkeys(story)):
            print(f"    {at:9.4f} {text}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
