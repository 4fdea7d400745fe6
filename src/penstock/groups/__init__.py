"""Consumer groups and their offsets: the state machines behind one partition of `__consumer_offsets`.

Pure: an event and the time go in, records and replies come out; no clock, socket, file or randomness of its own.
Invariants: `GroupShard.apply` is the only writer of what is remembered, live and on replay alike; what a rebalance
needs besides (who waits, until when) is rebuilt after a load. No partition has two owners in one generation. Called
by `broker/coordinators/groups.py` only.
"""
