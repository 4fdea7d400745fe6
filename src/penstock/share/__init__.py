"""Decides for share groups (KIP-932): which member has acquired which record, and how this state is stored.

Pure: requests and the time go in, changes and replies come out; no clock, socket, file or randomness of its own.
Invariants: a record is available, acquired, acknowledged or archived; acknowledged and archived are final. Only one
member at a time has acquired a record. A record is never delivered more often than the delivery limit. `partition` is
the state of the share-partition leader. Called by the broker.
"""
