"""Defines a finding of the guard: its kind, the accused node, and the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NOBODY = -1


class Kind(Enum):
    """Lists the kinds of findings. `counts` is False for findings that never lead to a quarantine."""

    CONTENT = "different content"
    CHECKSUM = "checksum fails"
    MISSING = "committed records missing"
    END_OFFSET = "end offset went back"
    HIGH_WATERMARK = "high watermark past the end"
    TWO_LEADERS = "two leaders in one epoch"
    EPOCH = "impossible epoch"
    TIMESTAMP = "timestamp in the future"
    AUTHENTICATION = "failed authentication"

    @property
    def counts(self) -> bool:
        """Returns True if a confirmed finding of this kind counts against the accused node.

        Wrong timestamps and failed logins do not count: a client or a wrong setting may have caused them. An end offset
        that went back does not count either, because only the leader saw it: the active controller first looks for the
        missing records itself.
        """
        return self not in (Kind.TIMESTAMP, Kind.AUTHENTICATION, Kind.END_OFFSET)


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    accused: int
    """The accused node; NOBODY if the observation does not show which node is wrong."""
    partition: str
    offset: int
    evidence: str

    @property
    def subject(self) -> tuple[Kind, int, str]:
        """Returns the kind, the accused node and the partition. Findings that agree in all three count as one."""
        return self.kind, self.accused, self.partition
