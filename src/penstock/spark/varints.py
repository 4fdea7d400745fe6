"""Reads many varints at once: one numpy pass per byte position instead of one Python step per record. Pure code."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
"""numpy arrays; their types are not checked here."""

_MAX_BYTES = 10


def read_varints(data: Array, positions: Array) -> tuple[Array, Array]:
    """Returns the value of the zigzag varint at each position, and the position after each varint.

    For a position past the end of the data, reads the last byte. The returned position is then also past the end, which
    the caller has to check.
    """
    first = data.take(positions, mode="clip")
    positions = positions + 1
    values = first.astype(np.int64)
    rest = np.flatnonzero(first & 0x80)
    if len(rest):
        if len(rest) == len(values):
            values, positions = _read_all(data, values, positions)
        else:
            values[rest], positions[rest] = _read_all(data, values[rest], positions[rest])
    # The shift has to be logical (unsigned): the largest numbers use all 64 bits.
    return (values.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(values & 1), positions


def _read_all(data: Array, values: Array, positions: Array) -> tuple[Array, Array]:
    """Decodes many varints of two or more bytes at once.

    `values` has the first byte of each varint, and `positions` the position of its second byte. Returns the unsigned
    values, and the position after each varint.
    """
    byte = data.take(positions, mode="clip")
    values = (values & 0x7F) | ((byte & 0x7F).astype(np.int64) << 7)
    positions = positions + 1
    more = np.flatnonzero(byte & 0x80)
    shift = 14
    while len(more) and shift < 7 * _MAX_BYTES:
        byte = data.take(positions[more], mode="clip")
        values[more] |= (byte & 0x7F).astype(np.int64) << shift
        positions[more] += 1
        more = more[(byte & 0x80) != 0]
        shift += 7
    # A varint without an end gets a length that no record has, so the check of the record's end fails.
    positions[more] += 1 << 40
    return values, positions
