"""Classic groups: members join, the leader assigns, members sync, and heartbeats keep their sessions alive.

`group.py` has the states and members, `join.py`, `sync.py` and `leave.py` handle the requests, `rebalance.py` leads
from one generation to the next. Only the records of `journal.py` are durable; all other state is lost with the
coordinator, as in Kafka: clients get an error code and join again.
"""
