"""Checks that coordinators answer clients, and act, only on committed state.

When a decision is settled, its replies go to clients and its effects, such as transaction markers, are performed. All
records that the decision has seen or written must be committed then: another coordinator may never have the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.broker.coordinators.commits import Commit, Commits
from penstock.broker.coordinators.runtime import Coordinator
from penstock.protocol.errors import ErrorCode
from penstock.sim.checks.taps import Tap

RULE = "coordinators answer from committed state"


class CommittedAnswers:
    def __init__(self, violated: Callable[[str, str], None]) -> None:
        self._violated = violated
        #: Id of a turn that waits for its commit → the turn, which keeps the id in use, and the end of the log then.
        self._waiting: dict[int, tuple[Any, int]] = {}
        self._reported: set[str] = set()

    def taps(self) -> list[Tap]:
        return [
            Tap(Commits, "add", self.appended, before=True),
            Tap(Coordinator, "_settle", self.settling, before=True),
        ]

    def appended(self, commits: Commits, decisions: Iterable[Commit]) -> None:
        """Notes the end of the log for decisions whose records have just been appended."""
        end_offset = commits._partition.log.log_end_offset
        for each in decisions:
            self._waiting[id(each.turn)] = each.turn, end_offset

    def settling(self, coordinator: Coordinator[Any], turn: Any, code: ErrorCode) -> None:
        """Checks a decision just before its replies are sent. A decision without records has seen the whole log."""
        log = coordinator.partition.log
        _, end_offset = self._waiting.pop(id(turn), (turn, log.log_end_offset + len(coordinator._batch)))
        partition = str(coordinator.partition)
        if code is not ErrorCode.NONE or partition in self._reported:
            return
        if log.high_watermark < end_offset:
            self._reported.add(partition)
            self._violated(
                RULE,
                f"{partition} of node {coordinator.partition.node_id} answers with the state at offset {end_offset}, "
                f"and its high watermark is {log.high_watermark}",
            )
