"""Fixtures of the tests of remote checkpoints."""

import time

import pytest


@pytest.fixture
def naps(monkeypatch):
    """Waiting takes no time, and is noted."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept
