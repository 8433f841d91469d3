"""Fixtures of several modules: certificates, what is asked in many, and those of modules that attack a node.

Each of the latter has a node of its own, and every test watches for harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.api_server import ApiServer, needs_api_server
from tests.integration.attacked_spool import AttackedSpool
from tests.integration.certificates import Authority
from tests.integration.http_api import Api
from tests.integration.scripted_router import running_router

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.testing import Node
    from tests.integration.attacked_node import AttackedNode
    from tests.integration.certificates import Pair
    from tests.integration.raw_guaranteed import RawGuaranteed
    from tests.integration.scripted_router import Router


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Give an authority that signs certificates."""
    return Authority(tmp_path_factory.mktemp("certificates") / "good")


@pytest.fixture(scope="session")
def server_pair(authority: Authority) -> Pair:
    """Give a certificate for the loopback addresses."""
    return authority.issue("server")


@pytest.fixture(scope="session")
def api_server(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, server_pair: Pair
) -> Iterator[ApiServer]:
    """Give an API server of Kubernetes, where there is one."""
    needs_api_server()
    with ApiServer(tmp_path_factory.mktemp("api"), authority, server_pair) as server:
        yield server


@pytest.fixture
def router() -> Iterator[Router]:
    """Give a scripted router."""
    with running_router() as router:
        yield router


@pytest.fixture
def api(node: Node) -> Iterator[Api]:
    """Give who asks the management API of the node of a module."""
    made = Api(node.management_url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedSpool]:
    """Give the node of a module."""
    with AttackedSpool(tmp_path_factory.mktemp("attacked")) as attacked:
        yield attacked


@pytest.fixture
def unharmed(attacked: AttackedNode) -> Iterator[None]:
    """Fail a test in which anybody but the attacker noticed the attack."""
    attacked.begin()
    yield
    attacked.expect_unharmed()


@pytest.fixture
def client(attacked: AttackedSpool) -> Iterator[RawGuaranteed]:
    """Give a raw client that is logged in."""
    with attacked.client() as client:
        yield client
