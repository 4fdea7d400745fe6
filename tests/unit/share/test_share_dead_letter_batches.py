"""Tests dead letters: the topics that may have them, their content, and their division into batches."""

from __future__ import annotations

import pytest

from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import ResourceType
from penstock.records.record import Record, read_records
from penstock.share.dead_letters import AUTO_CREATE, ENABLE, PREFIX, DeadLetter, Origin, batches, check_topic
from penstock.share.transitions import Reason

ORIGIN = Origin("workers", "jobs", 3)
CREATES = {AUTO_CREATE: "true"}


def image(*topics: str, enabled: bool = True) -> MetadataImage:
    configs = {(ResourceType.TOPIC.value, name): {ENABLE: str(enabled).lower()} for name in topics}
    return MetadataImage(topics={name: TopicImage(name, bytes(16), {}) for name in topics}, configs=configs)


@pytest.mark.parametrize(
    ("name", "existing", "settings"),
    [
        ("dlq.jobs", image("dlq.jobs"), {}),
        ("dlq.jobs", image(), CREATES),
        ("jobs.dead", image("jobs.dead"), {PREFIX: "jobs"}),
        ("anything", image(), {**CREATES, PREFIX: ""}),
    ],
)
def test_valid_dead_letter_topic_is_accepted(name: str, existing: MetadataImage, settings: dict[str, str]) -> None:
    check_topic(existing, Settings(settings), name)


@pytest.mark.parametrize(
    ("name", "existing", "settings", "reason"),
    [
        ("__consumer_offsets", image("__consumer_offsets"), {PREFIX: ""}, "internal"),
        ("dlq.jobs", image("dlq.jobs", enabled=False), CREATES, f"set its config {ENABLE}=true"),
        ("dlq.jobs", image(), {}, "does not exist"),
        ("payments", image("payments"), {}, "does not begin with 'dlq.'"),
    ],
)
def test_topic_that_may_not_have_dead_letters_is_refused(
    name: str, existing: MetadataImage, settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(KafkaError, match=reason) as refused:
        check_topic(existing, Settings(settings), name)
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def letter(offset: int, value: bytes = b"v", reason: Reason = Reason.REJECTED) -> DeadLetter:
    return DeadLetter(offset, 2, reason, Record(offset, 100 + offset, b"k", value, (("trace", b"7"),)))


def test_dead_letter_with_a_copied_record_has_the_key_and_value_and_headers_of_the_record() -> None:
    [batch] = batches(ORIGIN, [letter(5)], copy=True, now_ms=9_000, max_bytes=10_000)
    [record] = read_records(batch)
    assert (record.timestamp, record.key, record.value) == (9_000, b"k", b"v")
    assert record.headers == (
        ("trace", b"7"),
        ("__dlq.errors.topic", b"jobs"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"5"),
        ("__dlq.errors.group", b"workers"),
        ("__dlq.errors.delivery.count", b"2"),
        ("__dlq.errors.message", b"Offset rejected by client."),
        ("__dlq.errors.timestamp", b"105"),
    )


def test_deleted_record_gets_a_dead_letter_without_a_timestamp() -> None:
    [batch] = batches(ORIGIN, [DeadLetter(5, 2, Reason.EXCEEDED, None)], copy=True, now_ms=9_000, max_bytes=10_000)
    [record] = read_records(batch)
    assert (record.key, record.value) == (None, None)
    assert "__dlq.errors.timestamp" not in dict(record.headers)


def test_dead_letter_batches_are_not_larger_than_max_message_bytes_of_the_topic() -> None:
    made = list(batches(ORIGIN, [letter(each, b"x" * 700) for each in range(10)], copy=True, now_ms=0, max_bytes=3_000))
    assert len(made) > 1
    assert all(len(batch) <= 3_000 for batch in made)
    offsets = [dict(record.headers)["__dlq.errors.offset"] for batch in made for record in read_records(batch)]
    assert offsets == [str(each).encode() for each in range(10)]


def test_record_too_large_to_copy_gets_a_dead_letter_without_key_and_value() -> None:
    [batch] = batches(ORIGIN, [letter(1), letter(2, b"x" * 5_000)], copy=True, now_ms=0, max_bytes=3_000)
    small, large = read_records(batch)
    assert (small.value, large.value) == (b"v", None)
    assert "too large" in (dict(large.headers)["__dlq.errors.message"] or b"").decode()
