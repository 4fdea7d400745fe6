"""Streams groups (KIP-1071): the coordinator's part of Kafka Streams.

Members send their topology; the group derives its tasks from the partitions of the source topics, lets missing internal
topics be created, and assigns tasks. Invariants: no task is active on two members, no process holds a task twice, and
every topology of a group has the same epoch and content. Pure, like the other packages of `groups`, and called by
`groups/streams_requests.py` and `groups/shard.py`.
"""
