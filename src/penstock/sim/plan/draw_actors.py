"""Draws the parameters of the actors (simulated clients), each kind from its own random streams."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

Partitions = list[tuple[str, int]]


def stream(seed: int, name: str) -> Random:
    """Returns a stream of random numbers for `name`. Draws from other streams don't change its numbers."""
    return Random(f"{seed}/{name}")  # noqa: S311


def some(random: Random, partitions: Partitions) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(random.sample(partitions, random.randint(1, len(partitions)))))


def writing(random: Random, partitions: Partitions, **more: Any) -> dict[str, Any]:
    return {
        "partitions": some(random, partitions),
        "compression": random.choice((0, 0, 1, 2, 3, 4)),
        "burst": random.choice((1, 5, 20)),
        "size": random.choice((10, 100, 2_000)),
        "pause_s": random.choice((0.1, 0.4, 1.5)),
        **more,
    }


def _plain(random: Random, partitions: Partitions, index: int) -> dict[str, Any]:
    return writing(random, partitions, idempotent=False, acks=random.choice((-1, -1, 1, 0)))


def _idempotent(random: Random, partitions: Partitions, index: int) -> dict[str, Any]:
    return writing(random, partitions)


def _transactional(random: Random, partitions: Partitions, index: int) -> dict[str, Any]:
    return writing(random, partitions, transactional_id=f"tx{index}", abort=random.choice((0.1, 0.5)))


def _reader(random: Random, partitions: Partitions, index: int) -> dict[str, Any]:
    return {
        "partitions": some(random, partitions),
        "committed_only": random.random() < 0.5,
        "pause_s": random.choice((0.1, 0.5, 2.0)),
        "seek": random.choice((0.0, 0.3)),
        "max_bytes": random.choice((200, 4_096, 1 << 20)),
    }


def _member(random: Random, partitions: Partitions, index: int) -> dict[str, Any]:
    return {
        "partitions": tuple(partitions),
        "group": random.choice(("g1", "g2")),
        "committed_only": True,
        "pause_s": random.choice((0.3, 1.0)),
        "max_bytes": random.choice((500, 4_096)),
    }


def _copier(random: Random, partitions: Partitions, index: int) -> dict[str, Any]:
    return {
        "partitions": some(random, partitions),
        "group": f"copier{index}",
        "target": ("copies", 0),
        "transactional_id": f"copier{index}",
        "pause_s": random.choice((0.2, 1.0)),
        "max_bytes": random.choice((500, 4_096)),
    }


def _admin(random: Random, partitions: Partitions, index: int) -> dict[str, Any]:
    return {
        "partitions": tuple(partitions),
        "pause_s": random.choice((1.0, 4.0)),
        "delete_records": random.random() < 0.3,
    }


def _mover(random: Random, partitions: Partitions, index: int) -> dict[str, Any]:
    return {"partitions": tuple(partitions), "pause_s": random.choice((2.0, 5.0)), "elects": random.random() < 0.5}


def _table(random: Random, partitions: Partitions, index: int) -> dict[str, Any]:
    return writing(random, [("table", 0)], keys=random.choice((3, 20)), burst=random.choice((5, 20)))


#: Kind → share of seeds that have it, largest number of such actors, and the function that draws one.
ACTORS: dict[str, tuple[float, int, Callable[[Random, Partitions, int], dict[str, Any]]]] = {
    "plain": (0.6, 2, _plain),
    "idempotent": (0.5, 1, _idempotent),
    "transactional": (0.6, 2, _transactional),
    "reader": (0.8, 2, _reader),
    "member": (0.5, 3, _member),
    "copier": (0.4, 1, _copier),
    "table": (0.4, 2, _table),
    "admin": (0.5, 1, _admin),
    "mover": (0.0, 1, _mover),
}
