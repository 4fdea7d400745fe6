"""Implements streams groups (KIP-1071): the group coordinator's part of Kafka Streams.

Members send their topology. The group derives its tasks from the partitions of the source topics, requests the creation
of missing internal topics, and assigns the tasks to members. Invariants: no task is active on two members; no process
holds a task twice; every topology of a group has the same epoch and content. Pure, like the other packages of `groups`.
Called by `groups/streams_requests.py` and `groups/shard.py`.
"""
