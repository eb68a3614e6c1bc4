"""Fixtures; see harness.py for what they give."""
import sys
import pathlib

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import harness  # noqa: E402


@pytest.fixture
def cluster():
    """The context manager harness.cluster, for tests that want a cluster of their own."""
    return harness.cluster


@pytest.fixture(scope="module")
def demo():
    """One prefill and one decode node on the demo model, for the tests of a module together."""
    with harness.cluster(model=harness.DEMO, threads=0) as running:
        yield running


@pytest.fixture(scope="module")
def tiny():
    """The same on a tiny model."""
    with harness.cluster() as running:
        yield running
