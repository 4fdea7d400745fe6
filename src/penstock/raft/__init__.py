"""Implements the metadata quorum without I/O: `Raft.step(event, now_ms)` changes the state and returns effects.

The caller carries out the effects, such as writing to disk and sending messages.

Invariants: an epoch has at most one leader; a vote is on disk before any message mentions it; a replica counts towards
a majority only with records that it has fsynced; records below the high watermark are never truncated. The package uses
no clock, file, socket or randomness. Its caller (`broker.controlplane`) owns the log and the connections, runs one step
at a time, and carries out the effects of a step in order.
"""
