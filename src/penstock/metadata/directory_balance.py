"""Plans moves of replicas between the log directories of one node: to even out bytes, or to empty a directory. Pure
code.

A plan moves each replica at most once. A target directory is online, is not cordoned, and has enough free space.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.metadata.moves import PlanError
from penstock.protocol.vocabulary import TopicPartition

#: Directories are even if the fullest has at most this part of the average more than the emptiest.
EVEN_WITHIN = 0.05


@dataclass(frozen=True, slots=True)
class DirectoryState:
    path: str
    #: Bytes that can still be written; -1 if unknown.
    usable_bytes: int = -1
    offline: bool = False
    cordoned: bool = False

    @property
    def takes_replicas(self) -> bool:
        return not self.offline and not self.cordoned


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    directory: str
    size: int


@dataclass(frozen=True, slots=True)
class DirectoryMove:
    partition: TopicPartition
    source: str
    target: str
    size: int


def balance(
    directories: Collection[DirectoryState], replicas: Mapping[TopicPartition, PlacedReplica], reserve: int = 0
) -> list[DirectoryMove]:
    """Returns moves after which the directories hold about the same number of bytes. Ignores offline and cordoned
    directories.

    Each move goes from the fullest directory to the emptiest directory, if possible. It moves the replica that makes
    these two directories most equal. `reserve` is the number of bytes that stay free in every directory.
    """
    room = _Room([each for each in directories if each.takes_replicas], replicas, reserve)
    candidates: dict[str, list[tuple[int, TopicPartition]]] = {path: [] for path in room.held}
    for partition, replica in replicas.items():
        if replica.directory in candidates and replica.size > 0:
            candidates[replica.directory].append((replica.size, partition))
    for listed in candidates.values():
        listed.sort()
    moves: list[DirectoryMove] = []
    while (move := _next_move(room, candidates)) is not None:
        room.take(move)
        moves.append(move)
    return moves


def _next_move(room: _Room, candidates: Mapping[str, list[tuple[int, TopicPartition]]]) -> DirectoryMove | None:
    """Returns the best next move; None if no move evens out the directories. The move starts from the fullest directory
    that has a movable replica."""
    held = room.held
    even = EVEN_WITHIN * sum(held.values()) / max(len(held), 1)
    for source in sorted(held, key=lambda path: (-held[path], path)):
        for target in sorted(held, key=lambda path: (held[path], path)):
            gap = held[source] - held[target]
            if gap <= even:
                break
            slot = _closest(candidates[source], gap, room.left(target))
            if slot is not None:
                size, partition = candidates[source].pop(slot)
                return DirectoryMove(partition, source, target, size)
    return None


def _closest(listed: list[tuple[int, TopicPartition]], gap: int, room: float) -> int | None:
    """Returns the index of the replica whose size is closest to half of `gap`; None if no move would reduce the gap.

    `gap` is the difference in bytes between two directories.
    """
    largest = bisect_left(listed, int(min(gap - 1, room)) + 1, key=lambda each: each[0]) - 1
    if largest < 0:
        return None
    middle = bisect_left(listed, gap // 2, key=lambda each: each[0])
    near = {min(middle, largest), min(max(middle - 1, 0), largest)}
    return min(near, key=lambda slot: (abs(2 * listed[slot][0] - gap), slot))


def evacuate(
    path: str,
    directories: Collection[DirectoryState],
    replicas: Mapping[TopicPartition, PlacedReplica],
    reserve: int = 0,
) -> list[DirectoryMove]:
    """Returns the moves of all replicas out of a directory.

    Each replica moves to the directory that has the fewest bytes after the moves planned so far.

    Raises PlanError if the directory can't be read, or if the other directories have too little free space.
    """
    if any(each.path == path and each.offline for each in directories):
        raise PlanError(
            f"{path} is offline and can't be read: replace its disk and restart the node, which copies its replicas "
            "from their leaders"
        )
    others = [each for each in directories if each.takes_replicas and each.path != path]
    held = [each for each in replicas if replicas[each].directory == path]
    leaving = sorted(held, key=lambda each: (-replicas[each].size, each))
    if leaving and not others:
        raise PlanError(
            f"no other log directory of the node can take the replicas of {path}: add a directory to log.dirs, or "
            "take one out of cordoned.log.dirs"
        )
    room = _Room(others, replicas, reserve)
    moves = []
    for partition in leaving:
        size = replicas[partition].size
        targets = [target for target in room.held if room.left(target) >= size]
        if not targets:
            topic, index = partition
            raise PlanError(
                f"no other log directory of the node has room for {topic}-{index} ({size:,} bytes): free space, or "
                "add a directory to log.dirs"
            )
        target = min(targets, key=lambda each: (room.held[each], each))
        move = DirectoryMove(partition, path, target, size)
        room.take(move)
        moves.append(move)
    return moves


class _Room:
    """Tracks the bytes of replicas in each directory, and its remaining free bytes. Planned moves change both
    numbers."""

    def __init__(
        self,
        directories: Collection[DirectoryState],
        replicas: Mapping[TopicPartition, PlacedReplica],
        reserve: int,
    ) -> None:
        self.held = {each.path: 0 for each in directories}
        self._usable = {
            each.path: float("inf") if each.usable_bytes < 0 else each.usable_bytes - reserve for each in directories
        }
        for replica in replicas.values():
            if replica.directory in self.held:
                self.held[replica.directory] += replica.size

    def left(self, path: str) -> float:
        return self._usable[path]

    def take(self, move: DirectoryMove) -> None:
        """Adds a planned move. The source directory's free space stays the same in the plan, because the node deletes
        the old log only some time after the move.
        """
        self.held[move.target] += move.size
        self._usable[move.target] -= move.size
        if move.source in self.held:
            self.held[move.source] -= move.size


# Progress.


@dataclass(frozen=True, slots=True)
class CopyState:
    """Holds the state of one move, as DescribeLogDirs reports it.

    It has the sizes of the current log and of its copy, and the number of records that the copy lacks.
    """

    size: int
    copied: int
    records_left: int

    @property
    def bytes_left(self) -> int:
        return max(0, self.size - self.copied) if self.records_left else 0


def rate(before: CopyState | None, now: CopyState, seconds: float) -> float | None:
    """Returns the bytes per second that a move copied between two readings of its state; None without an earlier
    reading."""
    return None if before is None or seconds <= 0 else max(0, now.copied - before.copied) / seconds


def seconds_left(now: CopyState, bytes_per_second: float | None) -> float | None:
    """Returns the estimated time until a copy has caught up; None if it is unknown or nothing is being copied."""
    if not now.bytes_left:
        return 0.0
    return now.bytes_left / bytes_per_second if bytes_per_second else None
