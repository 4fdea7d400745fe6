"""Chooses a record's partition. A key gets the same partition as with Kafka's Java producer."""

from random import Random
from struct import Struct

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_WORD = Struct("<I")


def murmur2(data: bytes) -> int:
    """Returns the 32-bit MurmurHash2 that Kafka's producers use, as an unsigned number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for (word,) in _WORD.iter_unpack(data[:whole]):
        k = word * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def another_partition(partitions: int, last: int | None, random: Random) -> int:
    """Returns a random partition for records without a key. It is not `last`, the partition of the previous batch."""
    if last is None or partitions == 1:
        return random.randrange(partitions)
    return (last + random.randrange(1, partitions)) % partitions
