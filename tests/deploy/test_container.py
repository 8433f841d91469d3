"""The container image and the compose file, as far as they can be tried without an engine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser

from cluster.roster.table import STOP_ORDER
from cluster.supervisor.supervisor import STOP_AFTER_S
from tests.acceptance.installation import shared_installation
from tests.share import is_long

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 60.0
#: Packages may have to be downloaded, on a machine that is busy.
INSTALL_S = 300.0
PLACE = "/opt/angarium"
Step = tuple[str, str]


@pytest.fixture
def stages(deploy: Path) -> list[list[Step]]:
    """Give the instructions of each stage."""
    text = (deploy / "container" / "Containerfile").read_bytes()
    parser = DockerfileParser(fileobj=io.BytesIO(text))
    found: list[list[Step]] = []
    for one in parser.structure:
        if one["instruction"] == "FROM":
            found.append([])
        if one["instruction"] != "COMMENT":
            found[-1].append((one["instruction"], one["value"]))
    return found


@pytest.fixture
def compose(deploy: Path) -> Any:
    return yaml.safe_load((deploy / "container" / "compose.yaml").read_text(encoding="utf-8"))


def values(steps: list[Step], instruction: str) -> list[str]:
    return [value for name, value in steps if name == instruction]


# -- the image -----------------------------------------------------------------------------------------------


def test_a_linter_has_nothing_to_say_against_the_image(deploy: Path) -> None:
    linter = Path(sys.executable).parent / "hadolint"
    if not linter.exists():
        pytest.skip("hadolint is not made for this machine")
    file = deploy / "container" / "Containerfile"
    done = subprocess.run([linter, file], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_as_nobody_in_particular_and_holds_no_build(stages: list[list[Step]]) -> None:
    build, image = stages
    assert values(image, "USER") == ["10001:10001"]
    assert values(image, "STOPSIGNAL") == ["SIGTERM"]
    assert json.loads(values(image, "VOLUME")[0]) == ["/var/lib/angarium"]
    assert [value for value in values(image, "COPY") if not value.startswith("--from=build ")] == []
    assert not [value for value in values(image, "RUN") if "pip" in value]
    assert len(values(build, "RUN")) == 1
    environment = " ".join(values(image, "ENV"))
    assert "ANGARIUM_DATA=/var/lib/angarium" in environment
    assert not [word for word in ("SECRET", "PASSWORD", "KEY") if word in environment.upper()]


def test_only_what_the_image_is_made_of_is_sent_to_the_engine(deploy: Path, stages: list[list[Step]]) -> None:
    lines = (deploy / "container" / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {part for value in values(stages[0], "COPY") for part in shlex.split(value)[:-1]}
    assert sent == copied
    assert "*" in lines


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Path]:
    """Do the steps of the first stage in a folder instead of a container; gives what it would hand on.

    They take as long as to install both wheels; without --long it is the installation that the acceptance tests try.
    """
    if not is_long():
        own = tmp_path_factory.getbasetemp()
        yield shared_installation(own if worker_id == "master" else own.parent).folder
        return
    root = Path(__file__).resolve().parents[2]
    folder = tmp_path_factory.mktemp("image")
    source, place = folder / "src", folder / "opt"
    source.mkdir()
    steps = DockerfileParser(
        fileobj=io.BytesIO((root / "deploy" / "container" / "Containerfile").read_bytes())
    )
    for one in steps.structure[1:]:
        if one["instruction"] == "FROM" and values([("FROM", one["value"])], "FROM")[0].endswith("bookworm"):
            break
        if one["instruction"] == "COPY":
            copy(root, source, shlex.split(one["value"]))
        elif one["instruction"] == "RUN":
            run(one["value"].replace(PLACE, str(place)), source)
    yield place
    shutil.rmtree(folder, ignore_errors=True)


def copy(root: Path, source: Path, names: list[str]) -> None:
    *names, target = names
    (source / target).parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (root / name).is_dir():
            shutil.copytree(root / name, source / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / name, source / target)


def run(command: str, folder: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    environment["PIP_NO_COMPILE"] = "1"  # half of the time, and nothing to do with what is tried
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    if done.returncode != 0 and "Could not find a version" in done.stderr:
        pytest.skip("no package index can be reached, so the steps of the image cannot be tried")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S + 120)
def test_what_the_steps_make_starts_is_healthy_and_stops_on_its_signal(
    built: Path, stages: list[list[Step]], tmp_path: Path
) -> None:
    image = stages[1]
    config = tmp_path / "node.toml"
    # The usual port is that of all who ask for none, and of other tests.
    config.write_text('[router]\nlisten = ["tcp://127.0.0.1:0"]\n', encoding="utf-8")
    start = json.loads(values(image, "ENTRYPOINT")[0]) + json.loads(values(image, "CMD")[0])
    probe = json.loads(values(image, "HEALTHCHECK")[0].partition(" CMD ")[2])
    (tmp_path / "run").mkdir()
    environment = {
        "PATH": f"{built}/bin:{os.environ['PATH']}",
        "ANGARIUM_DATA": str(tmp_path / "data"),
        "TMPDIR": str(tmp_path / "run") if len(str(tmp_path)) < 60 else "/tmp",
    }
    start = [part.replace("/etc/angarium/node.toml", str(config)) for part in start]
    program = [str(built / "bin" / start[0]), *start[1:], "--workers", "1"]
    node = subprocess.Popen(
        program, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            asked = subprocess.run(
                [str(built / "bin" / probe[0]), *probe[1:]],
                env=environment,
                capture_output=True,
                timeout=30,
                check=False,
            )
            if asked.returncode == 0:
                break
            assert node.poll() is None, node.stderr
            assert time.monotonic() < deadline, asked
            time.sleep(0.1)
        node.send_signal(signal.SIGTERM)
        assert node.wait(DEADLINE_S) == 0
        assert list((tmp_path / "run").iterdir()) == [], "nothing is left where sockets were"
    finally:
        node.kill()
        node.communicate()


# -- compose -------------------------------------------------------------------------------------------------


def test_the_compose_file_is_one(deploy: Path) -> None:
    file = deploy / "container" / "compose.yaml"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nodes_differ_in_their_name_data_key_and_port_only(compose: Any) -> None:
    services = compose["services"]
    assert len(services) == 3
    for number, (name, service) in enumerate(services.items()):
        assert name == service["hostname"] == f"angarium-{number}"
        assert service["volumes"] == [f"data-{number}:/var/lib/angarium"]
        assert [one["source"] for one in service["secrets"] if isinstance(one, dict)] == [
            f"{name}.key",
            f"{name}.pem",
        ]
    kept = [
        {
            key: value
            for key, value in service.items()
            if key not in ("hostname", "volumes", "ports", "secrets")
        }
        for service in services.values()
    ]
    assert kept[0] == kept[1] == kept[2]
    assert {
        volume for service in services.values() for volume in [service["volumes"][0].partition(":")[0]]
    } == set(compose["volumes"])


def test_what_a_service_names_is_there_and_secrets_are_files(compose: Any) -> None:
    for service in compose["services"].values():
        named = {one if isinstance(one, str) else one["source"] for one in service["secrets"]}
        assert named <= set(compose["secrets"])
        assert {one["source"] for one in service["configs"]} <= set(compose["configs"])
        assert "environment" not in service
        assert "env_file" not in service
        assert int(service["stop_grace_period"].removesuffix("s")) > STOP_AFTER_S * len(STOP_ORDER)
        assert service["mem_limit"]
    assert all(set(secret) == {"file"} for secret in compose["secrets"].values())


def test_the_command_of_the_how_to_waits_for_an_ordered_stop(root: Path) -> None:
    page = (root / "docs" / "how-to" / "docker.md").read_text(encoding="utf-8")
    told = re.findall(r"--stop-timeout (\d+)|needs the (\d+) s only", page)
    assert len(told) == 2
    assert all(int(one or other) > STOP_AFTER_S * len(STOP_ORDER) for one, other in told)


def test_secrets_that_somebody_makes_there_are_not_committed(root: Path) -> None:
    ignored = (root / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "deploy/**/keys/" in ignored
    with contextlib.suppress(FileNotFoundError, subprocess.CalledProcessError):
        tracked = subprocess.run(
            ["git", "ls-files", "deploy"], cwd=root, capture_output=True, text=True, check=True
        )
        assert not [
            line for line in tracked.stdout.splitlines() if line.endswith((".key", ".secret", ".password"))
        ]
