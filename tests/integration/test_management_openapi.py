"""The description of the management API: valid, complete, and true of a running node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import openapi_spec_validator
import pytest

from angarium import errors
from cluster.admin.operations import OPERATIONS
from cluster.management.api.openapi import document
from cluster.management.api.routes import ROUTES
from tests.integration.http_api import OBJECTS, PASSWORD, Api, managed_node
from tests.share import short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow

#: Role -> who asks; nobody makes up these names, so nobody deletes them.
OPERATORS: Final = {"administrator": "o-7b1", "operator": "o-7b2", "viewer": "o-7b3"}
CONFIG: Final = Path(__file__).with_name("schemathesis.toml")
#: Requests per operation. With ANGARIUM_OPENAPI_EXAMPLES they are others at each run, and every limit is tried too.
EXAMPLES: Final = os.environ.get("ANGARIUM_OPENAPI_EXAMPLES")
EXAMPLES_DEFAULT: Final = "1"
LIMIT_S: Final = 300 if EXAMPLES is None else 36_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("management")
    with managed_node(folder) as running:
        for role, name in OPERATORS.items():
            made = ("operator", "create", name, "--set", f"role={role}")
            running.run(*made, "--password-file", str(folder / "password"))
        make_one_of_each(running)
        yield running


def make_one_of_each(node: Node) -> None:
    """Have an object of each kind with the name that is asked for, and a message in the queue."""
    api = Api(node.management_url)
    for base, _, attributes, _ in OBJECTS.values():
        made = api.send("POST", f"/api/v1{base}", {"name": "one", **attributes})
        assert made.status == 201, made.body
    api.close()
    node.run("pub", "--queue", "one", "hello")


@pytest.fixture(scope="module")
def described(node: Node) -> dict[str, Any]:
    api = Api(node.management_url)
    answer = api.get("/openapi.json")
    api.close()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.body == document()
    found: dict[str, Any] = answer.value
    return found


@pytest.mark.requirement("R256")
def test_it_is_valid_and_has_every_route_and_every_operation(described: dict[str, Any]) -> None:
    openapi_spec_validator.validate(described)
    told = {(method, path) for path, methods in described["paths"].items() for method in methods}
    assert {(route.method.lower(), f"/api/v1{route.path}") for route in ROUTES} <= told
    for name, rule in OPERATIONS.items():
        assert (("post", f"/api/v1/operations/{name}") in told) == (rule.scope != "host"), name


def test_objects_come_with_their_etags_and_passwords_never_come_back(described: dict[str, Any]) -> None:
    queue = described["paths"]["/api/v1/vpns/{vpn}/queues/{name}"]
    assert "If-Match" in [one.get("name") for one in queue["patch"]["parameters"]]
    assert "ETag" in queue["get"]["responses"]["200"]["headers"]
    schemas = described["components"]["schemas"]
    assert schemas["Username"]["properties"]["password"]["writeOnly"]
    assert "password" not in schemas["ShownUsername"]["properties"]
    assert schemas["Queue"]["properties"]["max_bind_count"]["maximum"] == 10_000
    example = described["components"]["responses"]["412"]["content"]["application/problem+json"]["example"]
    assert example["code"] == errors.CHANGED_MEANWHILE


def test_nothing_of_it_is_answered_to_who_does_not_log_in(node: Node, described: dict[str, Any]) -> None:
    api = Api(node.management_url)
    for path, methods in described["paths"].items():
        for method, about in methods.items():
            if about.get("security") == []:
                continue  # to log in
            refused = api.send(method.upper(), path.replace("{", "").replace("}", ""), Authorization="")
            assert (refused.status, refused.code) == (401, errors.UNAUTHORIZED), (method, path)
    api.close()


@pytest.mark.requirement("R256", "R257")
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize(
    "role",
    [
        pytest.param("viewer", marks=pytest.mark.long),
        pytest.param("operator", marks=pytest.mark.long),
        "administrator",
    ],
)
@pytest.mark.usefixtures("described")
def test_the_server_does_what_it_says(node: Node, tmp_path: Path, role: str) -> None:
    """Schemathesis makes up requests, those that fit the description and those that do not, and judges the answers."""
    before = node.run("config", "export")
    bounds = ["--seed", "1", "--max-examples", EXAMPLES_DEFAULT, "--phases", "fuzzing"]
    if EXAMPLES is not None:
        bounds = ["--max-examples", EXAMPLES, "--phases", "examples,coverage,fuzzing"]
    made = subprocess.run(
        [
            *(Path(sys.executable).with_name("st"), "--config-file", CONFIG, "run"),
            *(*bounds, "--no-shrink"),
            *("--auth", f"{OPERATORS[role]}:{PASSWORD}", f"{node.management_url}/api/v1/openapi.json"),
        ],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(CONFIG.parents[2]), "SCHEMATHESIS_HOOKS": "tests.integration.openapi_hooks"}
        | {"OPENAPI_PATHS_OF": str(short(3, long=1) if EXAMPLES is None else 1)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert json.loads(node.run("status", "--json"))["node"]
    assert role != "viewer" or node.run("config", "export") == before, (
        "who may only look has changed something"
    )
