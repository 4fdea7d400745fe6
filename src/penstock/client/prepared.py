"""Identifies a producer's prepared transaction, so that an external coordinator can store it (KIP-939). Pure code."""

from typing import NamedTuple


class PreparedTxnState(NamedTuple):
    """Identifies a prepared transaction. Its text is `producerId:epoch`; empty text means that none is prepared."""

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}" if self.producer_id >= 0 else ""

    @classmethod
    def parse(cls, text: str) -> "PreparedTxnState":
        """Parses the text form `producerId:epoch`. Raises ValueError."""
        if not text:
            return NOTHING_PREPARED
        producer_id, colon, epoch = text.partition(":")
        if not (colon and producer_id.isdecimal() and epoch.isdecimal()):
            raise ValueError(f"{text!r} is not a prepared transaction: write producer id and epoch, such as 4711:3")
        return cls(int(producer_id), int(epoch))


NOTHING_PREPARED = PreparedTxnState(-1, -1)
