"""Reads records of a batch to show them to a person. Decodes only the parts that are shown, in short steps.

A producer decides what a batch contains, and a broker checks only the batch's header and CRC. So this module does not
trust the records:

- Offsets are always in the range of the batch's header and increase from record to record.
- Records that are too long are not decoded, nor are headers beyond a limit.
- A batch that can't be decoded raises KafkaError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol.errors import KafkaError
from penstock.records.header import parse_header
from penstock.records.record import Headers, invalid, records_payload
from penstock.records.varint import read_varint, read_varlong

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from penstock.records.header import BatchHeader

#: Work of one step, which takes one to three milliseconds. One unit is a record that is passed over, or 256 bytes.
STEP_WORK = 5_000
#: Work of a record that is decoded, and of each of its headers.
DECODE_WORK = 5
#: Bytes that are searched for a text in one call, during which no other thread runs.
SEARCH_BYTES = 256 * 1024
_LONG_MAX = 2**63 - 1


class Excerpt(NamedTuple):
    offset: int
    timestamp: int
    size: int
    """Bytes of the key, the value and the headers."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    left_out: bool = False
    """True if the record is too long: then it has no key, no value and no headers here."""
    headers_left_out: int = 0


Step = tuple[list[Excerpt], int]
"""The wanted records of a step, and the offset after the last record that was read."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects the records to read, and limits the bytes and headers that are read of each record."""

    first: int = 0
    """The smallest offset."""
    contains: bytes = b""
    """A text in the key or the value."""
    record_bytes: int = 64 * 1024
    """Limit of key, value and headers of one record."""
    headers: int = 1_000
    """Limit of the headers of one record."""


def excerpt_steps(batch: Buffer, wanted: Wanted, max_bytes: int) -> Iterator[Step]:
    """Yields the selected records of one whole batch, in several steps; yields nothing if the batch has no records.

    Raises MESSAGE_TOO_LARGE if the records unpack to more than `max_bytes`. Raises INVALID_RECORD or CORRUPT_MESSAGE if
    a record can't be decoded; the records before it are yielded first.
    """
    header = parse_header(batch)
    data = records_payload(batch, header, max_bytes)
    if header.records_count > header.last_offset_delta + 1:
        offsets = header.last_offset_delta + 1
        raise invalid(f"A record batch claims {header.records_count} records for {offsets} offsets.")
    reader = _Reader(header, data, wanted)
    while reader.left:
        yield reader.step()
        if reader.problem is not None:
            raise reader.problem
    if reader.pos != len(data):
        raise invalid(f"{len(data) - reader.pos} bytes follow the last record of a batch.")


class _Reader:
    def __init__(self, header: BatchHeader, data: bytes, wanted: Wanted) -> None:
        self._header = header
        self._data = data
        self._wanted = wanted
        self._next_offset = header.base_offset
        self.pos = 0
        self.left = header.records_count
        self.problem: KafkaError | None = None

    def step(self) -> Step:
        """Reads the next records. Stops after a limited amount of work (STEP_WORK), or at a record that
        can't be read."""
        matches: list[Excerpt] = []
        try:
            self._read(matches)
        except KafkaError as error:
            self.problem = error
        except IndexError:
            self.problem = invalid("A record runs past the end of its batch.")
        return matches, self._next_offset

    def _read(self, matches: list[Excerpt]) -> None:
        """Adds the selected records to `matches`. Skips most other records without decoding them."""
        data, header, first, text = self._data, self._header, self._wanted.first, self._wanted.contains
        size, dense = len(data), header.is_dense
        pos, left, next_offset, work = self.pos, self.left, self._next_offset, STEP_WORK
        try:
            while left and work > 0:
                if (length := data[pos]) < 0x80:
                    length = (length >> 1) ^ -(length & 1)
                    start = pos + 1
                else:
                    length, start = read_varint(data, pos)
                end = start + length
                if length < 0 or end > size:
                    raise invalid(f"A record claims the impossible length {length} in a batch of {size} bytes.")
                offset = next_offset
                if not dense:
                    _, delta_pos = read_varlong(data, start + 1)
                    offset = header.offset_within(read_varint(data, delta_pos)[0], next_offset, left)
                if offset >= first:
                    if _contains(data, start, length, text):
                        work -= self._decode(offset, start, end, matches)
                    work -= length >> 8
                work -= 1
                pos, left, next_offset = end, left - 1, offset + 1
        finally:
            self.pos, self.left, self._next_offset = pos, left, next_offset

    def _decode(self, offset: int, pos: int, end: int, matches: list[Excerpt]) -> int:
        """Decodes the record at `pos`, and adds it to `matches` if it contains the searched text.

        Returns the amount of work, which counts towards STEP_WORK.
        """
        data, wanted, header = self._data, self._wanted, self._header
        length = end - pos
        time_delta, pos = read_varlong(data, pos + 1)  # after one byte of attributes, which has no meaning yet
        _, pos = read_varint(data, pos)
        key_length, key_start = read_varint(data, pos)
        value_length, value_start = read_varint(data, key_start + max(key_length, 0))
        headers, pos = read_varint(data, value_start + max(value_length, 0))
        if pos > end or headers < 0 or headers * 2 > end - pos:
            raise invalid(f"A record claims fields or {headers} headers that can't be in its {length} bytes.")
        text = wanted.contains
        if not (_contains(data, key_start, key_length, text) or _contains(data, value_start, value_length, text)):
            return DECODE_WORK
        time = header.max_timestamp if header.log_append_time else header.base_timestamp + time_delta
        time = min(max(time, -_LONG_MAX), _LONG_MAX)
        size = max(key_length, 0) + max(value_length, 0)
        if size + end - pos > wanted.record_bytes:
            matches.append(Excerpt(offset, time, size + end - pos, None, None, left_out=True, headers_left_out=headers))
            return DECODE_WORK
        shown, header_bytes = _headers(data, pos, end, headers, wanted.headers)
        key, value = _field(data, key_start, key_length), _field(data, value_start, value_length)
        rest = headers - len(shown)
        matches.append(Excerpt(offset, time, size + header_bytes, key, value, shown, headers_left_out=rest))
        return DECODE_WORK * (1 + len(shown))


def _field(data: bytes, start: int, length: int) -> bytes | None:
    """Returns a field. A negative length means null."""
    return None if length < 0 else data[start : start + length]


def _contains(data: bytes, start: int, length: int, text: bytes) -> bool:
    """Returns True if the field contains the text. The empty text is found in every field, also in null."""
    if length < len(text) or not text:
        return not text
    end = start + length
    at_once = SEARCH_BYTES + 2 * len(text)
    if length <= at_once:
        return data.find(text, start, end) >= 0
    starts = range(start, end, SEARCH_BYTES + len(text))
    return any(data.find(text, each, min(each + at_once, end)) >= 0 for each in starts)


def _headers(data: bytes, pos: int, end: int, count: int, limit: int) -> tuple[Headers, int]:
    """Returns the first `limit` headers of a record, and the number of bytes of all its headers."""
    found: list[tuple[str, bytes | None]] = []
    size = 0
    for _ in range(min(count, limit)):
        name_length, name = read_varint(data, pos)
        if name_length < 0:
            raise invalid("A record has a header without a key.")
        value_length, value = read_varint(data, name + name_length)
        pos = value + max(value_length, 0)
        if pos > end:
            raise invalid("A header ends after the end of its record.")
        size += name_length + max(value_length, 0)
        text = data[name : name + name_length].decode("utf-8", "replace")
        found.append((text, _field(data, value, value_length)))
    if count <= limit and pos != end:
        raise invalid("A record has more or fewer bytes than its length field says.")
    return tuple(found), size + end - pos
