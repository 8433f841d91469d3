"""Runs many seeds of the simulation; `scripts/simulate` is its front door.

The last line of the output is one JSON object: {"seeds", "failed_seeds", "verdict", ...}. Progress and the
stories of failures go to stderr.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation import failure_story, scenario, small_steps
from tests.simulation.guaranteed import guaranteed_scenario
from tests.simulation.mesh import mesh_scenario
from tests.simulation.standby.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.scenario import Outcome

#: Stories of more failures than this tell nothing new.
STORIES_MAX = 10
#: Worlds of direct messages only, with guaranteed ones, of several nodes, of any of these in small steps, and with
#: endpoints that change; each in turn.
DIRECT, GUARANTEED, MESH, STEPS, CHANGES, ALL = "direct", "guaranteed", "mesh", "steps", "changes", "all"
WORLDS = (DIRECT, GUARANTEED, MESH, STEPS, CHANGES)
#: A pair of hosts with an outside store, which has rules and a history of its own.
STANDBY = "standby"
#: Of the pairs, so many have one node that gets another home some time.
GROWING_EVERY = 5
#: What plays a world, and how the names of its seeds begin.
PLAYS: Final[dict[str, tuple[str, Callable[[str], Outcome]]]] = {
    DIRECT: ("", lambda seed: scenario.run(seed)),
    GUARANTEED: ("g", lambda seed: guaranteed_scenario.run(seed)),
    MESH: ("m", lambda seed: mesh_scenario.run(seed)),
    CHANGES: ("h", lambda seed: guaranteed_scenario.run_changing(seed)),
    STEPS: ("w", lambda seed: small_steps.run(seed)),
}


class Result(NamedTuple):
    """What a process gives back of a run."""

    number: int
    steps: int
    messages: int
    deliveries: int
    faults: int
    #: Empty if no rule was broken.
    story: str


def run_one(task: tuple[int, int, str]) -> Result:
    """Run one number of a series."""
    series, number, world = task
    if world == STANDBY:
        return _run_pair(series, number)
    world = world_of(number, world)
    outcome = PLAYS[world][1](name_of(series, number, world))
    history, records = outcome.history, outcome.all_guaranteed
    flows = [flow for one in records for flow in one.flows]
    return Result(
        number,
        outcome.steps,
        len(history.messages) + (len(records[0].publications) if records else 0),
        sum(len(one.deliveries) for one in history.connections) + sum(len(one.deliveries) for one in flows),
        len(history.faults),
        failure_story.tell(outcome) if outcome.violations else "",
    )


def _run_pair(series: int, number: int) -> Result:
    scenario = Scenario(f"s{series}/{number}", grows=number % GROWING_EVERY == 0)
    violations = scenario.play()
    story = "\n  ".join((f"seed {series}/{number}", *scenario.events)) if violations else ""
    deliveries = sum(scenario.received.values())
    return Result(number, scenario.loop.steps, len(scenario.acknowledged), deliveries, scenario.faults, story)


def world_of(number: int, world: str) -> str:
    """Give what kind of world a number has: with all, each in turn."""
    return WORLDS[number % len(WORLDS)] if world == ALL else world


def name_of(series: int, number: int, world: str = "direct") -> str:
    """Give the seed of a number in a series."""
    return f"{PLAYS[world][0]}{series}/{number}"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description="Run seeds of the simulation.")
    parser.add_argument("--seeds", type=int, default=100, help="how many runs")
    parser.add_argument("--seed", type=int, default=0, help="which series of runs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first run in its series")
    parser.add_argument("--world", choices=(ALL, *WORLDS, STANDBY), default=ALL, help="which kind of worlds")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--json", action="store_true", help="accepted for uniformity: the last line is JSON")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.processes < 1 or options.first < 0:
        parser.error("--seeds and --processes are at least 1, --first at least 0")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 0 if no rule was broken."""
    options = parse(arguments)
    numbers = range(options.first, options.first + options.seeds)
    tasks = [(options.seed, number, options.world) for number in numbers]
    started = time.monotonic()
    if options.processes == 1:
        results = _gather(map(run_one, tasks), options)
    else:
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            results = _gather(pool.imap(run_one, tasks, chunksize=4), options)
    failed = [result.number for result in results if result.story]
    summary = {
        "seeds": len(results),
        "failed_seeds": failed,
        "verdict": "bad" if failed else "good",
        "seconds": round(time.monotonic() - started, 1),
        "steps": sum(result.steps for result in results),
        "messages": sum(result.messages for result in results),
        "deliveries": sum(result.deliveries for result in results),
        "faults": sum(result.faults for result in results),
    }
    print(json.dumps(summary))
    return 1 if failed else 0


def _gather(results: object, options: argparse.Namespace) -> list[Result]:
    gathered: list[Result] = []
    stories = 0
    is_terminal = sys.stderr.isatty()
    for result in results:  # type: ignore[attr-defined]
        gathered.append(result)
        if result.story:
            stories += 1
            if stories <= STORIES_MAX:
                again = f"scripts/simulate --seeds 1 --seed {options.seed} --first {result.number}"
                if options.world != ALL:
                    again += f" --world {options.world}"
                print(f"{result.story}\n  again: {again}\n", file=sys.stderr)
        if is_terminal:
            text = f"\r{len(gathered)}/{options.seeds} runs, {stories} failed "
            print(text, end="", file=sys.stderr, flush=True)
    if is_terminal:
        print(file=sys.stderr)
    return gathered


if __name__ == "__main__":
    sys.exit(main())
