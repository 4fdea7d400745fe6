"""Which transaction a producer has prepared: what an outside coordinator remembers of it (KIP-939). Pure."""

from typing import NamedTuple


class PreparedTxnState(NamedTuple):
    """As text `producerId:epoch`; the empty text stands for no transaction, as Kafka writes it."""

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}" if self.producer_id >= 0 else ""

    @classmethod
    def parse(cls, text: str) -> "PreparedTxnState":
        """Raises ValueError."""
        if not text:
            return NOTHING_PREPARED
        producer_id, colon, epoch = text.partition(":")
        if not (colon and producer_id.isdecimal() and epoch.isdecimal()):
            raise ValueError(f"{text!r} is no prepared transaction: it looks like 4711:3")
        return cls(int(producer_id), int(epoch))


NOTHING_PREPARED = PreparedTxnState(-1, -1)
