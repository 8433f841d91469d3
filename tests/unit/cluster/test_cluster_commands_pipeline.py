"""The options that the commands of the pipeline share."""

from __future__ import annotations

import click
import pytest

from angarium.pipeline.session import SparkSettings
from cluster.commands.pipeline.options import spark_options


@click.command()
@spark_options
def show(*, spark: SparkSettings) -> SparkSettings:
    return spark


def test_master_and_settings_of_spark_are_handed_over() -> None:
    found = show.main(
        args=["--master", "local[2]", "--conf", "spark.a=1=2", "--conf", "spark.b="], standalone_mode=False
    )
    assert found == SparkSettings(master="local[2]", conf={"spark.a": "1=2", "spark.b": ""})


@pytest.mark.parametrize("text", ["spark.a", "a=1"])
def test_what_is_no_setting_of_spark_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"write spark\.NAME=VALUE"):
        show.main(args=["--conf", text], standalone_mode=False)
