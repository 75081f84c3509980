"""Two hosts for each file of these tests; a file stays on one worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cluster import Cluster, Host, missing


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two hosts on this machine."""
    if reason := missing():
        pytest.skip(reason)
    with Cluster() as made:
        yield made


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """Two hosts on this machine with Slurm."""
    if reason := missing(with_slurm=True):
        pytest.skip(reason)
    with Cluster(slurm=True) as made:
        yield made


@pytest.fixture
def hosts(cluster: Cluster) -> Iterator[tuple[Host, ...]]:
    """The hosts, on which nothing runs yet."""
    cluster.reset()
    yield cluster.hosts
    cluster.reset()
