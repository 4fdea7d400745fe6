"""Lets the producers of a run begin near the last possible epoch. Otherwise a producer would need thousands of
transactions to reach this epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.transactions import initialize


@contextmanager
def first_epoch(epoch: int) -> Iterator[None]:
    """Gives `epoch` to the first producer of each transactional id while the `with` block runs."""
    before = initialize.FIRST_EPOCH
    initialize.FIRST_EPOCH = epoch
    try:
        yield
    finally:
        initialize.FIRST_EPOCH = before
