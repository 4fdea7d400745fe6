"""Consumer groups and their offsets: the state machines behind one partition of `__consumer_offsets`.

Pure: an event and the time go in, records and replies come out; no clock, socket, file or randomness of its own.
Invariants: only `GroupShard.apply` changes durable state, for live changes and for replay; the soft state of a
rebalance (waiting members and their deadlines) is rebuilt after a load. No partition has two owners in one generation.
Called by `broker/coordinators/groups.py` only.
"""
