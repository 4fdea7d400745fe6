"""Tests how `penstock start` and `penstock up` run a node in the foreground."""

from __future__ import annotations

import asyncio

import pytest

from penstock.cli import output, serve
from penstock.cli.exit import Exit, Failure
from penstock.node.storage import StorageError


def test_slow_start_of_a_node_is_reported_every_few_seconds_until_the_start_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[str] = []
    announced = asyncio.Event()

    def note(text: str) -> None:
        notes.append(text)
        announced.set()

    class SlowNode:
        async def start(self) -> None:
            await announced.wait()
            raise StorageError("the directory is not formatted")

    async def run() -> int:
        with pytest.raises(Failure) as raised:
            await serve._serve(SlowNode(), "/data", "text", False)  # type: ignore[arg-type]
        assert raised.value.code == Exit.STORAGE
        said = len(notes)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(notes) == said, "notes end with the start"
        return said

    monkeypatch.setattr(serve, "STILL_STARTING_S", 0.0)
    monkeypatch.setattr(output, "note", note)
    assert asyncio.run(run()) >= 1
    assert notes[0].startswith("still starting after ")
