"""Converts the quorum's voters and protocol version to control records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.raft.batches import voters_record
from penstock.raft.voters import Voter

__all__ = ["Voter", "voter_messages"]


def voter_messages(kraft_version: int, voters: Sequence[Voter]) -> list[Any]:
    """Returns the control records with the set of voters.

    Returns an empty list for static voters, because the properties define them.
    """
    from penstock.protocol.persisted.raft.kraft_version_record import KRaftVersionRecord

    if not kraft_version:
        return []
    return [KRaftVersionRecord(version=0, kraft_version=kraft_version), voters_record(voters)]
