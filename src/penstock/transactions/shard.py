"""Holds the transactional ids in one partition of `__transaction_state`.

Durable state changes only in `apply`. Functions of the other modules decide on requests and timers; they get the shard
and a `Turn`, which collects their effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.allowance import Allowance
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.transactions import ending
from penstock.transactions.config import TransactionConfig
from penstock.transactions.deadlines import Deadline, Deadlines
from penstock.transactions.journal import JournalRecord, decode_record, encode_record
from penstock.transactions.states import DECIDED, State
from penstock.transactions.transaction import Transaction
from penstock.transactions.turn import Turn

LATEST_VERSION = 2


class TransactionShard:
    #: A record replaces all earlier records with its key.
    incremental = False

    def __init__(
        self,
        config: TransactionConfig,
        take_producer_id: Callable[[], int | None],
        server_version: Callable[[], int] = lambda: LATEST_VERSION,
        allowance: Allowance | None = None,
    ) -> None:
        """Creates an empty shard.

        `take_producer_id` returns an unused producer id, or None while none is available. `allowance` is a memory limit
        shared with other shards: transactional ids and partitions beyond this limit are refused.
        """
        self.config = config
        self.allowance = allowance or Allowance()
        self.transactions: dict[str, Transaction] = {}
        self.held_bytes = 0
        """Approximate memory of all transactional ids."""
        self.deadlines = Deadlines()
        self._take_producer_id = take_producer_id
        self._server_version = server_version

    @property
    def server_version(self) -> int:
        """Returns the level of the feature `transaction.version`."""
        return self._server_version()

    def turn(self, now_ms: int, wall_ms: int) -> Turn:
        return Turn(now_ms, wall_ms)

    def encode(self, record: JournalRecord) -> tuple[bytes, bytes | None]:
        return encode_record(record, self.server_version)

    def decode(self, key: bytes | None, value: bytes | None) -> JournalRecord | None:
        return decode_record(key, value)

    def new_producer_id(self) -> int:
        producer_id = self._take_producer_id()
        if producer_id is None:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "No producer id is available yet: retry soon.")
        return producer_id

    # --- durable state

    def apply(self, record: JournalRecord, log_offset: int, producer_id: int = -1) -> None:
        transactional_id, txn = record
        known = self.transactions.get(transactional_id)
        self.held_bytes += (txn.held_bytes if txn is not None else 0) - (known.held_bytes if known is not None else 0)
        if txn is not None:
            self.transactions[transactional_id] = txn
        elif known is not None:
            del self.transactions[transactional_id]

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        """No-op: no transaction writes to this topic."""

    def remembered(self) -> Mapping[str, Transaction]:
        """Returns all durable state. A replay of the log must restore exactly this state."""
        return self.transactions

    # --- load and unload

    def loaded(self, turn: Turn) -> None:
        """Resumes after a load: writes the markers of decided transactions again, and starts the timeouts of open
        transactions."""
        for txn in self.transactions.values():
            if txn.state in DECIDED:
                turn.send_markers(txn)
            elif txn.state is State.ONGOING and not txn.two_phase:
                left_ms = max(0, txn.start_ms + txn.timeout_ms - turn.wall_ms)
                self.watch(txn, turn.now_ms + min(left_ms, txn.timeout_ms))

    def abandon(self, turn: Turn) -> None:
        """Drops the state when the leadership is lost.

        The shard has no parked requests to answer. Results of markers that are still in flight are ignored, because
        their transactions are dropped.
        """
        self.transactions.clear()
        self.held_bytes = 0

    # --- time

    def watch(self, txn: Transaction, at_ms: int) -> None:
        self.deadlines.add(Deadline(at_ms, txn.transactional_id, txn.producer_id, txn.producer_epoch, txn.start_ms))

    def next_deadline(self) -> int | None:
        return self.deadlines.next_ms()

    def on_timers(self, turn: Turn) -> None:
        for deadline in self.deadlines.due(turn.now_ms):
            txn = self.transactions.get(deadline.transactional_id)
            if txn is None or txn.state is not State.ONGOING or txn.two_phase:
                continue
            if (txn.producer_id, txn.producer_epoch, txn.start_ms) != deadline[2:]:
                continue
            try:
                ending.fence(self, turn, txn)
            except KafkaError:  # no producer id is available
                self.watch(txn, turn.now_ms + self.config.abort_retry_ms)

    def expire(self, turn: Turn, transactional_id: str) -> None:
        """Deletes the transactional id if it has not been used for `transactional.id.expiration.ms`."""
        txn = self.transactions.get(transactional_id)
        if txn is None or txn.state in DECIDED or txn.state is State.ONGOING:
            return
        if txn.update_ms <= turn.wall_ms - self.config.id_expiration_ms:
            turn.erase(transactional_id)
