"""Implements classic groups: members join, the leader assigns, members sync, and heartbeats keep their sessions alive.

`group.py` has the states and members. `join.py`, `sync.py` and `leave.py` handle the requests, and `rebalance.py` runs
a rebalance. Only the records of `journal.py` are durable. When the coordinator moves, all other state is lost, as in
Kafka: clients get an error code and join again.
"""
