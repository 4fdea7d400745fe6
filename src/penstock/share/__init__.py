"""Implements share groups (KIP-932): decides which member acquires which record, and how this state is stored.

The package is pure: functions take requests and the time, and return changes and replies. They use no clock, socket,
file or randomness. Invariants: a record is available, acquired, acknowledged or archived; acknowledged and archived are
final. Only one member at a time has acquired a record. A record is never delivered more often than the delivery limit.
`partition` is the state of the share-partition leader. Called by the broker.
"""
