"""Tests that connections can't use all file descriptors: some are reserved for logs and checkpoints."""

import pytest

from penstock.disk.reserve import RESERVED_DESCRIPTORS
from penstock.node import descriptors
from penstock.node.descriptors import MAX_LOG_FILES, Descriptors, available, raise_limit, shared

resource = pytest.importorskip("resource")


@pytest.mark.parametrize("limit", [128, 256, 512, 1024, 4096, 65_536, 1_048_576])
@pytest.mark.parametrize("nodes", [1, 3])
def test_nodes_in_one_process_together_use_fewer_file_descriptors_than_the_process_may_open(
    limit: int, nodes: int
) -> None:
    share = shared(limit, nodes)
    assert nodes * (share.log_files + share.connections + RESERVED_DESCRIPTORS) < limit or limit // nodes < 128
    assert share.connections >= 1
    assert share.log_files <= MAX_LOG_FILES


def test_node_reserves_about_half_of_its_file_descriptors_for_connections() -> None:
    assert shared(1024).connections > 500
    assert shared(1_048_576).connections > 1_000_000


def test_node_raises_its_soft_limit_of_open_files_up_to_the_hard_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(256, soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    try:
        before = available()
        raise_limit()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert raised == (descriptors.WANTED if hard == resource.RLIM_INFINITY else min(hard, descriptors.WANTED))
        assert available().connections > before.connections or raised == lower
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_number_of_connections_is_unbounded_if_the_process_has_no_limit_of_open_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert available() == Descriptors()
