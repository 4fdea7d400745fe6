"""Validates a batch before a leader appends it, and assigns its offset and leader epoch.

A batch is validated by its header and CRC. The header contains the first and the largest timestamp of the batch, and
these two are checked. The records are unpacked and examined only in these cases:

- The topic is compacted: it refuses records without a key.
- A timestamp in the header is wrong: the response lists the records with this error.
- The header lacks the largest timestamp: it is found in the records.
- The topic has its own codec: the records are compressed again.

Kafka examines each record. So Kafka refuses a batch whose records do not match the count in its header, while this
broker stores it. A false count can't be used to skip offsets, because it must match the offsets and the size of the
batch.

The client's bytes are not copied: the result has a new start of the header (`head`) and a view of the other bytes
(`tail`), for one `writev`.

A client can send a batch whose examination takes long. So an append examines only batches that are small when unpacked;
for a larger batch it raises `UnpackFirstError`. Then the caller prepares the batch in slices and appends it again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

from penstock.check import check
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import NO_TIMESTAMP
from penstock.records.batches import check_crc, crc32c, iter_batches
from penstock.records.build import seal
from penstock.records.compression import CODEC_NAMES, Codec, codec_of, compress
from penstock.records.header import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    parse_header,
)
from penstock.records.record import MAX_UNCOMPRESSED_BYTES, MIN_RECORD_SIZE, invalid, records_payload
from penstock.records.scan import SLICE_RECORDS, Slices, finish, indexes_without_key, record_times, unpacked_if_small

if TYPE_CHECKING:
    from typing_extensions import Buffer

LONG_MAX = 2**63 - 1
MAX_RECORD_ERRORS = 1000

# The most bytes that one byte can unpack to, by codec number; 0 for numbers without a codec.
_MAX_EXPANSION = (1, 1032, 64, 255, 43_691, 0, 0, 0)
_HEAD = struct.Struct(">qii")
_HEAD_SIZE = _HEAD.size
_unpack = HEADER.unpack_from
_new_tuple = tuple.__new__


class TopicSettings(Protocol):
    """The interface of the topic configs that appends depend on. The log's config object implements it."""

    @property
    def max_message_bytes(self) -> int: ...
    @property
    def message_timestamp_type(self) -> str: ...
    @property
    def message_timestamp_before_max_ms(self) -> int: ...
    @property
    def message_timestamp_after_max_ms(self) -> int: ...
    @property
    def compression_type(self) -> str: ...
    @property
    def compression_gzip_level(self) -> int: ...
    @property
    def compression_lz4_level(self) -> int: ...
    @property
    def compression_zstd_level(self) -> int: ...
    @property
    def cleanup_policy(self) -> frozenset[str]: ...


@dataclass(frozen=True, slots=True)
class AppendRules:
    """Holds a topic's rules for batches, computed once per config. If `codec` is None, each batch keeps its own
    codec."""

    max_message_bytes: int
    log_append_time: bool = False
    timestamp_before_max_ms: int = LONG_MAX
    timestamp_after_max_ms: int = LONG_MAX
    codec: Codec | None = None
    level: int | None = None
    keys_required: bool = False

    @staticmethod
    def of(settings: TopicSettings) -> AppendRules:
        codec = None if settings.compression_type == "producer" else CODEC_NAMES[settings.compression_type]
        levels = {
            Codec.GZIP: settings.compression_gzip_level,
            Codec.LZ4: settings.compression_lz4_level,
            Codec.ZSTD: settings.compression_zstd_level,
        }
        return AppendRules(
            max_message_bytes=settings.max_message_bytes,
            log_append_time=settings.message_timestamp_type == "LogAppendTime",
            timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
            timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
            codec=codec,
            level=None if codec is None else levels.get(codec),
            keys_required="compact" in settings.cleanup_policy,
        )


class LeaderBatch(NamedTuple):
    """Holds a batch as it is appended: `head` and `tail` are its bytes, `header` is its decoded header."""

    header: BatchHeader
    head: bytes
    tail: Buffer


class RecordError(NamedTuple):
    batch_index: int
    message: str


class InvalidRecordsError(KafkaError):
    """Raised if a batch is refused because some of its records are invalid. It lists these records for the response."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[RecordError]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class NotOneBatchError(KafkaError):
    """Raised if a produce request does not contain exactly one record batch for the partition."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class Prepared(NamedTuple):
    """Holds the result of examining a batch, and the topic's `rules` by which it was examined.

    `payload` has the records, compressed with the topic's codec. It is None if the batch keeps the client's codec.
    """

    rules: AppendRules
    max_timestamp: int
    payload: bytes | None


class UnpackFirstError(Exception):
    """Raised if a batch is too large to be examined during its append. The caller then prepares the batch and appends
    it again."""

    def __init__(self, header: BatchHeader, batch: memoryview, rules: AppendRules, now_ms: int) -> None:
        super().__init__("The batch has to be unpacked before it is appended.")
        self.header = header
        self.batch = batch
        self.rules = rules
        self.now_ms = now_ms


def validate_produced(
    records: Buffer,
    rules: AppendRules,
    *,
    base_offset: int,
    leader_epoch: int,
    now_ms: int,
    prepared: Prepared | None = None,
) -> LeaderBatch:
    """Validates a client's batch, and returns it with `base_offset`. Raises KafkaError if the batch is refused.

    Raises UnpackFirstError if the records have to be unpacked: the caller unpacks them in a thread and calls again with
    the result, `prepared`. If `rules` have changed since then, the result is ignored.
    """
    view = memoryview(records)
    size = len(view)
    if size < HEADER_SIZE or view[MAGIC_POSITION] != MAGIC:
        view = _only_batch(view)
        size = len(view)
    header = _new_tuple(BatchHeader, _unpack(view))
    (
        offset,
        length,
        _,
        _,
        crc,
        attributes,
        last_delta,
        base_time,
        max_time,
        producer_id,
        producer_epoch,
        sequence,
        count,
    ) = header
    if length + LOG_OVERHEAD != size:
        view = _only_batch(view)
        size = len(view)
    if (
        offset
        or size > rules.max_message_bytes
        or crc32c(view[CRC_START:]) != crc
        or count <= 0
        or last_delta != count - 1
        or count * MIN_RECORD_SIZE > (size - HEADER_SIZE) * _MAX_EXPANSION[attributes & COMPRESSION_MASK]
        or attributes & CONTROL_FLAG
        or (sequence < 0 or producer_epoch < 0 if producer_id >= 0 else attributes & TRANSACTIONAL_FLAG)
    ):
        _refuse(header, view, rules)
    codec = rules.codec
    if (
        rules.log_append_time
        or rules.keys_required
        or attributes & LOG_APPEND_TIME_FLAG
        or max_time < base_time
        or max_time - now_ms > rules.timestamp_after_max_ms
        or now_ms - base_time > rules.timestamp_before_max_ms
        or (codec is not None and codec != attributes & COMPRESSION_MASK)
    ):
        if prepared is None or prepared.rules is not rules:
            prepared = _prepare_small(header, view, rules, now_ms)
        return _converted(header, view, rules, base_offset, leader_epoch, now_ms, prepared)
    return LeaderBatch(
        _new_tuple(
            BatchHeader,
            (base_offset, length, leader_epoch, MAGIC, *header[4:]),
        ),
        _HEAD.pack(base_offset, length, leader_epoch),
        view[_HEAD_SIZE:],
    )


def validate_own(
    records: Buffer, rules: AppendRules, *, base_offset: int, leader_epoch: int, now_ms: int
) -> list[LeaderBatch]:
    """Validates batches that this broker itself built (coordinators, quorum), and returns them ready to append.

    Control batches are allowed.
    """
    batches = []
    for header, view in iter_batches(records):
        if header.size > rules.max_message_bytes:
            raise _too_large(header.size, rules)
        check_crc(view)
        _check_count(header, view)
        prepared = None
        if _must_unpack(header, rules, now_ms):
            data = records_payload(view, header, MAX_UNCOMPRESSED_BYTES)
            max_timestamp = finish(_inspecting_times(header, data, rules, now_ms))
            prepared = Prepared(rules, max_timestamp, packed_anew(header, data, rules))
        batch = _converted(header, view, rules, base_offset, leader_epoch, now_ms, prepared)
        batches.append(batch)
        base_offset = batch.header.next_offset
    if not batches:
        raise invalid("There is no record batch to append.")
    return batches


def _only_batch(view: memoryview) -> memoryview:
    """Returns the only batch of a record set. As in Kafka, ignores an incomplete batch after it."""
    try:
        found = list(iter_batches(view, allow_partial=True))
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
            raise
        raise NotOneBatchError(error.message or "") from None
    if not found:
        raise NotOneBatchError("A produce request needs one whole record batch for each partition.")
    if len(found) > 1:
        raise NotOneBatchError(f"A produce request must have one record batch for each partition, not {len(found)}.")
    return found[0][1]


def _refuse(header: BatchHeader, view: memoryview, rules: AppendRules) -> NoReturn:
    """Raises KafkaError with the reason why a client's batch is refused. The order of checks is Kafka's."""
    if header.base_offset:
        raise invalid(f"The base offset of a produced batch has to be 0, not {header.base_offset}.")
    if len(view) > rules.max_message_bytes:
        raise _too_large(len(view), rules)
    check_crc(view)
    codec_of(header.compression)
    _check_count(header, view)
    if header.is_control:
        raise invalid("Clients may not write control batches.")
    if header.producer_id < 0:
        raise invalid("A transactional batch needs a producer id.")
    raise invalid(
        f"The batch of producer {header.producer_id} needs a sequence and an epoch, "
        f"not {header.base_sequence} and {header.producer_epoch}."
    )


def _too_large(size: int, rules: AppendRules) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch has {size} bytes, over max.message.bytes={rules.max_message_bytes}: send smaller batches "
        "or raise the topic's limit.",
    )


def _check_count(header: BatchHeader, view: memoryview) -> None:
    count = header.records_count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise invalid(f"The batch claims {count} records, but its last offset delta is {header.last_offset_delta}.")
    room = (len(view) - HEADER_SIZE) * _MAX_EXPANSION[header.compression]
    if count * MIN_RECORD_SIZE > room:
        raise invalid(f"The batch claims {count} records, more than its {len(view)} bytes can hold.")


def _prepare_small(header: BatchHeader, view: memoryview, rules: AppendRules, now_ms: int) -> Prepared | None:
    if not rules.keys_required and not _must_unpack(header, rules, now_ms):
        return None
    data = unpacked_if_small(header, view)
    if data is None:
        raise UnpackFirstError(header, view, rules, now_ms)
    return Prepared(rules, finish(inspecting(header, data, rules, now_ms)), packed_anew(header, data, rules))


def _must_unpack(header: BatchHeader, rules: AppendRules, now_ms: int) -> bool:
    if _changes_codec(header, rules):
        return True
    if rules.log_append_time:
        return False
    return _lacks_max_timestamp(header) or _refused_time(header, header.max_timestamp, rules, now_ms) is not None


def _changes_codec(header: BatchHeader, rules: AppendRules) -> bool:
    return rules.codec is not None and rules.codec != header.compression and not header.is_control


def _lacks_max_timestamp(header: BatchHeader) -> bool:
    """True if the client did not set the batch's max timestamp.

    In this case the broker uses the largest timestamp of the batch's records, as Kafka does.
    """
    return header.max_timestamp < header.base_timestamp and not header.has_delete_horizon


def _refused_time(header: BatchHeader, max_timestamp: int, rules: AppendRules, now_ms: int) -> int | None:
    """Checks the batch's first timestamp and its max timestamp.

    Returns the timestamp that is too old or too new; None if both are valid.
    """
    earliest, latest = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
    for timestamp in (header.base_timestamp, max_timestamp):
        if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            return timestamp
    return None


def inspecting(header: BatchHeader, data: bytes, rules: AppendRules, now_ms: int) -> Slices[int]:
    """Examines the unpacked records of a client's batch. Returns their largest timestamp. Raises KafkaError if a record
    is invalid."""
    if rules.keys_required:
        yield from _check_keys(header, data)
    return (yield from _inspecting_times(header, data, rules, now_ms))


def _inspecting_times(header: BatchHeader, data: bytes, rules: AppendRules, now_ms: int) -> Slices[int]:
    max_timestamp = header.max_timestamp
    if rules.log_append_time:
        return max_timestamp
    if _lacks_max_timestamp(header):
        max_timestamp = yield from _largest_time(header, data)
    refused = _refused_time(header, max_timestamp, rules, now_ms)
    if refused is not None:
        yield from _refuse_time(header, data, refused, rules, now_ms)
    return max_timestamp


def packed_anew(header: BatchHeader, data: bytes, rules: AppendRules) -> bytes | None:
    """Returns the records compressed with the topic's codec; None if the batch keeps the client's codec.

    Compression may be slow, for example zstd with level 22.
    """
    if rules.codec is None or not _changes_codec(header, rules):
        return None
    return compress(rules.codec, data, rules.level)


def _check_keys(header: BatchHeader, data: bytes) -> Slices[None]:
    missing = yield from indexes_without_key(header, data, MAX_RECORD_ERRORS)
    if missing:
        raise InvalidRecordsError(
            ErrorCode.INVALID_RECORD,
            "A compacted topic needs a key in every record.",
            [RecordError(index, "This record has no key, and the topic is compacted.") for index in missing],
        )


def _largest_time(header: BatchHeader, data: bytes) -> Slices[int]:
    largest = NO_TIMESTAMP
    for times in record_times(header, data):
        largest = max(largest, max(time for _, time in times))
        yield
    return largest


def _refuse_time(header: BatchHeader, data: bytes, refused: int, rules: AppendRules, now_ms: int) -> Slices[NoReturn]:
    earliest, latest = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
    errors: list[RecordError] = []
    for first, times in enumerate(record_times(header, data)):
        for index, (_, time) in enumerate(times, first * SLICE_RECORDS):
            if time != NO_TIMESTAMP and not earliest <= time <= latest:
                errors.append(RecordError(index, f"The timestamp {time} is not between {earliest} and {latest}."))
        if len(errors) >= MAX_RECORD_ERRORS:
            break
        yield
    raise InvalidRecordsError(
        ErrorCode.INVALID_TIMESTAMP,
        f"The timestamp {refused} of the batch is not between {earliest} and {latest}: see "
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
        errors[:MAX_RECORD_ERRORS],
    )


def _converted(
    header: BatchHeader,
    view: memoryview,
    rules: AppendRules,
    base_offset: int,
    leader_epoch: int,
    now_ms: int,
    prepared: Prepared | None,
) -> LeaderBatch:
    """Returns a batch with the topic's timestamp type and codec. Used if the client's batch can't be appended as it
    is."""
    max_timestamp = header.max_timestamp if prepared is None else prepared.max_timestamp
    attributes, max_timestamp = _assigned_time(header, rules, max_timestamp, now_ms)
    payload: Buffer = view[HEADER_SIZE:]
    if prepared is not None and prepared.payload is not None and rules.codec is not None:
        payload = prepared.payload
        attributes = attributes & ~COMPRESSION_MASK | rules.codec
    assigned = header._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch)
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        head = _HEAD.pack(base_offset, header.batch_length, leader_epoch)
        return LeaderBatch(assigned, head, view[_HEAD_SIZE:])
    head = seal(assigned._replace(attributes=attributes, max_timestamp=max_timestamp), payload)
    assigned = parse_header(head)
    if assigned.size > rules.max_message_bytes:
        raise _too_large(assigned.size, rules)
    check(assigned.next_offset - base_offset == header.records_count, "conversion keeps the records")
    return LeaderBatch(assigned, head, payload)


def _assigned_time(header: BatchHeader, rules: AppendRules, max_timestamp: int, now_ms: int) -> tuple[int, int]:
    """Returns the attributes and the max timestamp that the batch gets in the log, by the topic's
    message.timestamp.type."""
    if not rules.log_append_time:
        return header.attributes & ~LOG_APPEND_TIME_FLAG, max_timestamp
    if header.log_append_time:
        why = "Only the broker sets log append times: send the batch with create times."
        errors = [RecordError(index, why) for index in range(min(header.records_count, MAX_RECORD_ERRORS))]
        raise InvalidRecordsError(ErrorCode.INVALID_TIMESTAMP, why, errors)
    return header.attributes | LOG_APPEND_TIME_FLAG, now_ms
