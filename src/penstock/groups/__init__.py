"""Decides for the groups of one partition of `__consumer_offsets`: their members, assignments and offsets.

Pure: an event and the time go in, records and replies come out; no clock, socket, file or randomness of its own.
Invariants: only `GroupShard.apply` changes durable state, both for new records and in a replay. State that is not in
the log (waiting members and their deadlines) is rebuilt after a load. No partition has two owners in one generation.
Called by `broker/coordinators/groups.py` only.
"""
