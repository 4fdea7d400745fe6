"""Tests whether a log can be used after each kind of error, and which errors its readers and writers get."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from penstock.log.health import LogHealth
from penstock.log.scan import CorruptBatchError
from penstock.protocol.errors import ErrorCode, KafkaError

SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
FULL = (errno.ENOSPC, errno.EDQUOT)
BROKEN = (errno.EIO, errno.EROFS)


class Watched:
    """Holds the health of a log in /a, and the notifications that its manager gets."""

    def __init__(self) -> None:
        self.failures: list[int | None] = []
        self.damages: list[str] = []
        self.health = LogHealth("t-0", "/a", disk_failed=self.note, report_corruption=self.damages.append)

    def note(self, error: OSError) -> None:
        assert self.health.failure is not None, "the manager is notified of a log that is offline already"
        self.failures.append(error.errno)


def refused(check: Callable[[], None]) -> ErrorCode | None:
    try:
        check()
    except KafkaError as error:
        return error.code
    return None


def error_of(code: int) -> OSError:
    return OSError(code, f"error {code}")


@pytest.mark.parametrize("code", [None, *SHORTAGES, *FULL, *BROKEN])
@pytest.mark.parametrize("closed", [False, True])
def test_log_can_be_read_after_a_full_disk_and_written_only_without_a_failure(code: int | None, closed: bool) -> None:
    watched = Watched()
    health = watched.health
    if code is not None:
        assert health.failed(error_of(code)).code is ErrorCode.KAFKA_STORAGE_ERROR
    health.closed = closed
    broken = code in FULL + BROKEN
    assert watched.failures == ([code] if broken else [])
    gone = ErrorCode.NOT_LEADER_OR_FOLLOWER if closed else ErrorCode.KAFKA_STORAGE_ERROR
    assert refused(health.check_writable) == (gone if broken or closed else None)
    assert refused(health.check_readable) == (gone if code in BROKEN else None)


@pytest.mark.parametrize("code", [*SHORTAGES, *FULL, *BROKEN])
def test_closed_log_does_not_go_offline_and_reports_no_failure(code: int) -> None:
    watched = Watched()
    watched.health.closed = True
    assert watched.health.failed(error_of(code)).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert watched.health.failed_midway(error_of(code)).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (watched.health.failure, watched.failures) == (None, [])


@pytest.mark.parametrize("code", [*SHORTAGES, *FULL, *BROKEN])
def test_error_that_interrupts_a_change_of_files_takes_the_log_offline(code: int) -> None:
    watched = Watched()
    assert watched.health.failed_midway(error_of(code)).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert watched.health.failure is not None
    assert watched.health.failure.errno == code
    assert watched.failures == ([] if code in SHORTAGES else [code]), "a shortage is no failure of the directory"
    assert refused(watched.health.check_writable) is ErrorCode.KAFKA_STORAGE_ERROR


def test_offline_log_keeps_its_first_failure_and_notifies_its_manager_once() -> None:
    watched = Watched()
    health = watched.health
    health.failed(error_of(errno.EIO))
    first = health.failure
    for code in (*FULL, *SHORTAGES, errno.EROFS):
        health.failed(error_of(code))
        health.failed_midway(error_of(code))
        health.take_offline(error_of(code))
    assert health.failure is first
    assert watched.failures == [errno.EIO]


def test_log_goes_offline_with_its_directory_without_a_second_notification() -> None:
    watched = Watched()
    error = error_of(errno.EIO)
    watched.health.take_offline(error)
    assert (watched.health.failure, watched.failures) == (error, [])


def test_error_of_a_moved_log_names_its_new_directory() -> None:
    health = Watched().health
    assert "/a failed" in str(health.failed(error_of(errno.EMFILE)).message)
    health.moved_to("/b")
    assert "/b failed" in str(health.failed(error_of(errno.EMFILE)).message)


def test_damaged_batch_is_reported_with_its_reason_and_the_log_stays_online() -> None:
    watched = Watched()
    assert (
        watched.health.corrupt(CorruptBatchError("/a/t-0/0.log", 61, "bad checksum")).code is ErrorCode.CORRUPT_MESSAGE
    )
    assert watched.damages == ["/a/t-0/0.log at byte 61: bad checksum"]
    assert watched.health.failure is None
