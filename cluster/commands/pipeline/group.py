"""`angarium pipeline`: the group that the commands of the jobs are in, each in a module named after its job.

What they share is in `cluster.commands.pipeline.options`.
"""

from __future__ import annotations

import click

from cluster.commands.pipeline.archive import archive
from cluster.commands.pipeline.compare import compare
from cluster.commands.pipeline.replay import replay
from cluster.commands.pipeline.report import report
from cluster.commands.terminal.group import SuggestingGroup


@click.group(cls=SuggestingGroup)
def pipeline() -> None:
    """Spark jobs: archive queues as Parquet, replay, report and compare.

    Needs pip install 'angarium[spark]' and Java 17 or later.
    """


pipeline.add_command(archive)
pipeline.add_command(compare)
pipeline.add_command(replay)
pipeline.add_command(report)
