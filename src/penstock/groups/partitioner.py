"""Maps a key to a partition of a coordinator topic: the absolute Java string hash, modulo the partition count."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Returns Java's `String.hashCode`: over UTF-16 code units, in signed 32-bit arithmetic."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for low, high in zip(units[::2], units[1::2]):
        value = (value * 31 + (low | high << 8)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def coordinator_partition(key: str, partition_count: int) -> int:
    value = java_hash(key)
    # the smallest 32-bit value has no positive counterpart; Kafka maps it to zero
    return 0 if value == -(1 << 31) else abs(value) % partition_count
