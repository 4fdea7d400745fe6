"""Holds a share consumer's acknowledgements that are not sent yet, by partition. No I/O."""

from typing import TypeVar

from penstock.protocol.vocabulary import TopicPartition

B = TypeVar("B")


class PendingAcks:
    __slots__ = ("_by_partition",)

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, dict[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_partition)

    def add(self, partition: TopicPartition, offset: int, kind: int) -> None:
        self._by_partition.setdefault(partition, {})[offset] = kind

    def take(self, partition: TopicPartition) -> dict[int, int]:
        """Removes and returns a partition's acknowledgement types by offset."""
        return self._by_partition.pop(partition, {})

    def partitions(self) -> list[TopicPartition]:
        return list(self._by_partition)


def batches_of(answers: dict[int, int], make: type[B]) -> list[B]:
    """Returns the acknowledgement batches of a request: one batch for each range of offsets with the same type."""
    batches: list[B] = []
    run: tuple[int, int, int] | None = None
    for offset, kind in sorted(answers.items()):
        if run is not None and offset == run[1] + 1 and kind == run[2]:
            run = (run[0], offset, kind)
            continue
        if run is not None:
            batches.append(make(first_offset=run[0], last_offset=run[1], acknowledge_types=[run[2]]))  # type: ignore[call-arg]
        run = (offset, offset, kind)
    if run is not None:
        batches.append(make(first_offset=run[0], last_offset=run[1], acknowledge_types=[run[2]]))  # type: ignore[call-arg]
    return batches
