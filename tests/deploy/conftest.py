"""What all tests of deploy/ share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def deploy() -> Path:
    return ROOT / "deploy"


@pytest.fixture
def root() -> Path:
    return ROOT
