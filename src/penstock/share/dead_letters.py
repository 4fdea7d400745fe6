"""Builds dead letters (KIP-1191): copies of records that a share group has given up, for its dead-letter topic.

A group names its topic in `errors.deadletterqueue.topic.name`. The topic's name must begin with the broker's prefix
(`errors.deadletterqueue.topic.name.prefix`), and the topic must allow dead letters
(`errors.deadletterqueue.group.enable`). The headers have Kafka's names; Penstock adds a header with the timestamp of
the record. The key, the value and the headers of a record are copied if the group's config requires it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.build import NewRecord, build_batch
from penstock.records.header import HEADER_SIZE
from penstock.share.transitions import Reason

if TYPE_CHECKING:
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage
    from penstock.records.record import Headers, Record

ENABLE = "errors.deadletterqueue.group.enable"
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
PREFIX = "errors.deadletterqueue.topic.name.prefix"
#: The configs of a dead-letter topic that a broker creates. The timestamp of a dead letter is the time of its writing.
CREATED_WITH = {ENABLE: "true", "message.timestamp.type": "CreateTime"}

MESSAGES = {
    Reason.REJECTED: "Offset rejected by client.",
    Reason.EXCEEDED: "Offset delivery count exceeded the threshold.",
    Reason.BY_OPERATOR: "Offset archived by an operator.",
}
TOO_LARGE = " The record is too large for the dead-letter topic and was not copied."
#: Bytes of a record or of a header besides its key and its value, at most.
_RECORD_BYTES, _HEADER_BYTES = 40, 12


class Origin(NamedTuple):
    """Names the share group's partition whose records were given up."""

    group: str
    topic: str
    partition: int


class DeadLetter(NamedTuple):
    """Holds a record that was given up. `record` is None if the record has been deleted from the log."""

    offset: int
    deliveries: int
    reason: Reason
    record: Record | None


def check_topic(image: MetadataImage, settings: Settings, name: str) -> None:
    """Raises KafkaError if a share group may not use the topic as its dead-letter topic.

    Also raises KafkaError if the topic does not exist and may not be created.
    """
    prefix = settings.str(PREFIX)
    reason = None
    if name.startswith("__"):
        reason = "has the name of an internal topic: choose another one."
    elif name in image.topics and image.topic_config(name).get(ENABLE) != "true":
        reason = f"does not allow it: set its config {ENABLE}=true."
    elif name not in image.topics and not settings.bool(AUTO_CREATE):
        reason = f"does not exist: create it with {ENABLE}=true, or set the broker property {AUTO_CREATE}=true."
    elif not name.startswith(prefix):
        reason = f"does not begin with {prefix!r}, the value of {PREFIX}: choose another name."
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Topic {name!r} can't be a dead-letter topic, because it {reason}")


def batches(
    origin: Origin, letters: Iterable[DeadLetter], *, copy: bool, now_ms: int, max_bytes: int
) -> Iterator[bytes]:
    """Yields record batches of at most `max_bytes`. If a record is too large, only its headers are written."""
    waiting: list[NewRecord] = []
    size = HEADER_SIZE
    for letter in letters:
        made = _record(origin, letter, copy=copy, now_ms=now_ms)
        needed = _size(made)
        if HEADER_SIZE + needed > max_bytes and copy:
            made = _record(origin, letter, copy=False, now_ms=now_ms, note=TOO_LARGE)
            needed = _size(made)
        if waiting and size + needed > max_bytes:
            yield build_batch(waiting)
            waiting, size = [], HEADER_SIZE
        waiting.append(made)
        size += needed
    if waiting:
        yield build_batch(waiting)


def _record(origin: Origin, letter: DeadLetter, *, copy: bool, now_ms: int, note: str = "") -> NewRecord:
    record = letter.record
    facts = {
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": letter.offset,
        "group": origin.group,
        "delivery.count": letter.deliveries,
        "message": MESSAGES[letter.reason] + note,
        **({} if record is None else {"timestamp": record.timestamp}),
    }
    added: Headers = tuple((f"__dlq.errors.{name}", str(value).encode()) for name, value in facts.items())
    if record is None or not copy:
        return now_ms, None, None, added
    return now_ms, record.key, record.value, (*record.headers, *added)


def _size(record: NewRecord) -> int:
    _, key, value, headers = record
    named = sum(len(name.encode()) + len(text or b"") + _HEADER_BYTES for name, text in headers)
    return _RECORD_BYTES + len(key or b"") + len(value or b"") + named
