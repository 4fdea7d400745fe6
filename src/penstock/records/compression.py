"""Compresses and decompresses record batches. A codec is imported on first use; no output exceeds the caller's limit.

Output above the limit raises MESSAGE_TOO_LARGE, which makes a producer split the batch. Kafka itself has no such limit,
because it reads a batch record by record. Bytes that cannot be decoded raise CORRUPT_MESSAGE.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Codec(IntEnum):
    """Lists the codecs, with their numbers in the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_NAMES: dict[str, Codec] = {
    "none": Codec.NONE,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
LZ4_DEFAULT_LEVEL = 9  # Kafka's number for the fast compressor; other levels use the high-compression one
LZ4_FASTEST = 0
ZSTD_DEFAULT_LEVEL = 3

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_INT32 = struct.Struct(">i")
_GZIP_WBITS = 31
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_CHUNK = 16 * 1024
_ZSTD_CHUNK = 256 * 1024
_ZSTD_RLE_BLOCK = 1


def codec_of(number: int) -> Codec:
    try:
        return Codec(number)
    except ValueError:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Compression type {number} is unknown: use none, gzip, snappy, lz4 or zstd.",
        ) from None


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compresses the records of a batch. `level` has the meaning of the topic config compression.<codec>.level."""
    match codec_of(codec):
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            return _compress_lz4(data, level)
        case Codec.ZSTD:
            import zstandard

            packer_zstd = zstandard.ZstdCompressor(level=ZSTD_DEFAULT_LEVEL if level is None else level)
            return packer_zstd.compress(memoryview(data))


def decompress(codec: int, data: Buffer, max_size: int) -> bytes:
    """Decompresses the records of a batch. Raises KafkaError if the result has more than `max_size` bytes."""
    match codec_of(codec):
        case Codec.NONE:
            return _limited(bytes(data), max_size)
        case Codec.GZIP:
            return _decompress_gzip(data, max_size)
        case Codec.SNAPPY:
            return _decompress_snappy(data, max_size)
        case Codec.LZ4:
            return _decompress_lz4(data, max_size)
        case Codec.ZSTD:
            return _decompress_zstd(data, max_size)


def _limited(data: bytes, max_size: int) -> bytes:
    if len(data) > max_size:
        raise _too_large(max_size)
    return data


def _too_large(max_size: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"A record batch unpacks to more than {max_size} bytes: send smaller batches."
    )


def _corrupt(codec: Codec, reason: object) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f"The {codec.name.lower()} data of a record batch is damaged: {reason}."
    )


def _decompress_gzip(data: Buffer, max_size: int) -> bytes:
    """Decompresses one or several gzip members. Ignores other bytes after the last member, as Java does."""
    view = memoryview(data)
    parts: list[bytes] = []
    room = max_size + 1
    pos = 0
    while True:
        member = zlib.decompressobj(_GZIP_WBITS)
        while not member.eof and room > 0:
            if pos >= len(view):
                raise _corrupt(Codec.GZIP, "it is cut off")
            # In pieces: the bytes after each member are copied, and there may be thousands of members.
            piece = view[pos : pos + _GZIP_CHUNK]
            try:
                parts.append(member.decompress(piece, room))
            except zlib.error as error:
                raise _corrupt(Codec.GZIP, error) from None
            room -= len(parts[-1])
            pos += len(piece) - len(member.unused_data)
        if room <= 0:
            raise _too_large(max_size)
        if view[pos : pos + len(_GZIP_MAGIC)] != _GZIP_MAGIC:
            return b"".join(parts)


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    """Returns independent 64 KiB blocks without a content size, which every client can read, even old Java clients."""
    import lz4.frame

    packed = lz4.frame.compress(
        data,
        compression_level=LZ4_FASTEST if level in (None, LZ4_DEFAULT_LEVEL) else level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        store_size=False,
    )
    return bytes(packed)


def _decompress_lz4(data: Buffer, max_size: int) -> bytes:
    import lz4.frame

    frame = lz4.frame.LZ4FrameDecompressor()
    try:
        out = bytes(frame.decompress(data, max_length=max_size + 1))
    except (RuntimeError, EOFError, ValueError) as error:
        raise _corrupt(Codec.LZ4, error) from None
    if len(out) > max_size:
        raise _too_large(max_size)
    if not frame.eof:
        raise _corrupt(Codec.LZ4, "it is cut off")
    return out


def _compress_xerial(data: Buffer) -> bytes:
    """Compresses to the stream format of snappy-java: a header, then blocks with their compressed lengths. A block
    holds at most 32 KiB of input."""
    from cramjam import snappy

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_size: int) -> bytes:
    """Decompresses a stream of snappy-java, or a single block without a stream header, as librdkafka writes it."""
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(view, max_size, max_size)
    parts = []
    room = max_size
    pos, end = len(_XERIAL_HEADER), len(view)
    if pos > end:
        raise _corrupt(Codec.SNAPPY, "it is cut off")
    while pos < end:
        if pos + 4 > end:
            raise _corrupt(Codec.SNAPPY, "it is cut off")
        if view[pos : pos + 8] == _XERIAL_MAGIC:  # another stream may follow: snappy-java reads on
            pos += len(_XERIAL_HEADER)
            continue
        (length,) = _INT32.unpack_from(view, pos)
        pos += 4
        if length < 0 or length > end - pos:
            raise _corrupt(Codec.SNAPPY, f"a snappy block claims {length} bytes, but {end - pos} bytes follow")
        block = _snappy_block(view[pos : pos + length], room, max_size)
        room -= len(block)
        parts.append(block)
        pos += length
    return b"".join(parts)


def _snappy_block(view: memoryview, room: int, max_size: int) -> bytes:
    from cramjam import DecompressionError, snappy

    claimed = _snappy_length(view)
    if claimed > room:
        raise _too_large(max_size)
    if claimed > 64 * len(view):  # three bytes unpack to at most 64: a false length must not allocate memory
        raise _corrupt(Codec.SNAPPY, f"a snappy block of {len(view)} bytes claims to unpack to {claimed} bytes")
    try:
        return bytes(snappy.decompress_raw(view))
    except DecompressionError as error:
        raise _corrupt(Codec.SNAPPY, error) from None


def _snappy_length(view: memoryview) -> int:
    """Reads the unpacked length at the start of a snappy block, a varint of at most five bytes."""
    length = 0
    for index, byte in enumerate(view[:5]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return length
    raise _corrupt(Codec.SNAPPY, "a snappy block has no valid length")


def _decompress_zstd(data: Buffer, max_size: int) -> bytes:
    """Decompresses one or several zstd frames as a stream, because a frame need not state its unpacked size."""
    import zstandard

    view = memoryview(data)
    parts = []
    room = max_size + 1
    try:
        with zstandard.ZstdDecompressor().stream_reader(view, read_across_frames=True) as reader:
            while room > 0 and (chunk := reader.read(min(room, _ZSTD_CHUNK))):
                parts.append(chunk)
                room -= len(chunk)
            if room > 0:
                _check_zstd_ends(view)
    except zstandard.ZstdError as error:
        raise _corrupt(Codec.ZSTD, error) from None
    if room <= 0:
        raise _too_large(max_size)
    return b"".join(parts)


def _check_zstd_ends(view: memoryview) -> None:
    """Walks the block headers of zstd frames, and raises KafkaError if the last frame is incomplete.

    The stream reader does not report an incomplete frame.
    """
    import zstandard

    pos, end = 0, len(view)
    while pos < end:
        frame = zstandard.get_frame_parameters(view[pos:])
        pos += zstandard.frame_header_size(view[pos:])
        last = False
        while not last:
            if pos + 3 > end:
                raise _corrupt(Codec.ZSTD, "it is cut off")
            block = int.from_bytes(view[pos : pos + 3], "little")
            last = bool(block & 1)
            pos += 3 + (1 if block >> 1 & 3 == _ZSTD_RLE_BLOCK else block >> 3)
        pos += 4 if frame.has_checksum else 0
    if pos != end or not end:
        raise _corrupt(Codec.ZSTD, "it is cut off")
