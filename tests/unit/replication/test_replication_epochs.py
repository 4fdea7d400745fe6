"""Tests which leader epochs a request may contain, and where epochs end in the leader's log."""

from __future__ import annotations

import pytest

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.replication.epochs import check_leader_epoch, newest_epoch_end


@pytest.mark.parametrize("asked", [-1, 5])
def test_request_with_the_current_leader_epoch_or_without_an_epoch_is_accepted(asked: int) -> None:
    check_leader_epoch(asked, 5)


@pytest.mark.parametrize(
    ("asked", "code"),
    [(4, ErrorCode.FENCED_LEADER_EPOCH), (0, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_epoch_older_than_the_leaders_epoch_is_fenced_and_a_newer_epoch_is_unknown(asked: int, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        check_leader_epoch(asked, 5)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("epoch", "latest", "expected"),
    [
        pytest.param(5, 5, (5, 100), id="the leader's own epoch"),
        pytest.param(5, 3, (5, 100), id="the leader's own epoch before its first batch"),
        pytest.param(5, None, (5, 100), id="the leader's own epoch, an empty log"),
        pytest.param(4, None, (4, 100), id="an older epoch, an empty log"),
        pytest.param(-1, None, None, id="no epoch, an empty log"),
        pytest.param(3, 3, (3, 100), id="the last epoch of the list"),
        pytest.param(4, 3, (3, 100), id="between the last of the list and the leader's"),
        pytest.param(2, 3, None, id="before the last of the list"),
        pytest.param(6, 5, None, id="an epoch to come"),
        pytest.param(6, None, None, id="an epoch to come, an empty log"),
    ],
)
def test_end_offset_of_the_newest_leader_epoch_is_the_log_end(
    epoch: int, latest: int | None, expected: tuple[int, int] | None
) -> None:
    assert newest_epoch_end(epoch, 5, latest, 100) == expected
