"""Classic groups: members join, the leader assigns, everybody syncs, heartbeats keep the seat.

`group.py` holds the states and who is in them, `join.py`, `sync.py` and `leave.py` take the requests, `rebalance.py`
moves a group from one generation to the next. Durable is only what `journal.py` writes; the rest is soft and lost
with the coordinator, as in Kafka: clients find out by an error code and join again.
"""
