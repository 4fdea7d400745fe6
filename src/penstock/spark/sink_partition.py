"""Chooses partitions for a whole column of keys at once, with the hash of Kafka's default partitioner. Pure code."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
_WORD = 4


def partitions_of(keys: Array, partitions: int, for_none: int) -> Array:
    """Returns the partition of each key of an Arrow binary array. A null key gets the partition `for_none`."""
    if keys.null_count == len(keys):
        return np.full(len(keys), for_none, np.int64)
    chosen = (murmur2(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions
    if keys.null_count:
        chosen[keys.is_null().to_numpy(zero_copy_only=False)] = for_none
    return chosen


def murmur2(keys: Array) -> Array:
    """Returns the hash of each key as uint32, computed as in Kafka's producers.

    The loop runs once for each word of the longest key, and each pass covers all keys that have this word.
    """
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = keys.buffers()[2]
    # Words are read past the end of a key; the bytes that do not belong to it are masked away.
    padded = np.zeros((len(data) if data is not None else 0) + _WORD, np.uint8)
    if data is not None:
        padded[: len(data)] = np.frombuffer(data, np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    by_length = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[by_length], lengths[by_length]
    words = lengths // _WORD
    h = _SEED ^ lengths.astype(np.uint32)
    with np.errstate(over="ignore"):
        for index in range(int(words[0]) if len(words) else 0):
            active = int(np.searchsorted(-words, -index, side="left"))  # the longest come first
            k = _word_at(padded, starts[:active] + index * _WORD) * _M
            k = (k ^ (k >> np.uint32(24))) * _M
            h[:active] = (h[:active] * _M) ^ k
        left = lengths % _WORD
        tails = np.flatnonzero(left)
        if len(tails):
            mask = (np.uint32(1) << (left[tails] * 8).astype(np.uint32)) - np.uint32(1)
            rest = _word_at(padded, starts[tails] + words[tails] * _WORD) & mask
            h[tails] = (h[tails] ^ rest) * _M
        h = (h ^ (h >> np.uint32(13))) * _M
        h = h ^ (h >> np.uint32(15))
    found = np.empty_like(h)
    found[by_length] = h
    return found


def _word_at(data: Array, positions: Array) -> Array:
    """Returns the little-endian 32-bit word that begins at each of the given byte positions."""
    words = np.ndarray((len(data) - _WORD + 1,), "<u4", data, strides=(1,))
    return words[positions].astype(np.uint32, copy=False)
