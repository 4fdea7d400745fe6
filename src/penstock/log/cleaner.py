"""Compaction: to come."""

from __future__ import annotations


class Cleaner:
    async def run(self) -> None:
        """Nothing yet."""
