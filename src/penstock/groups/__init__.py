"""Implements the group coordinator for one partition of `__consumer_offsets`: members, assignments and offsets.

The package is pure: functions take an event and the time, and return records and replies. They use no clock, socket,
file or randomness. Invariants: only `GroupShard.apply` changes durable state, both for new records and in a replay.
State that is not in the log (waiting members and their deadlines) is rebuilt after a load. No partition has two owners
in one generation. Called by `broker/coordinators/groups.py` only.
"""
