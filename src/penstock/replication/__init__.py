"""Replication of one partition, decided without a clock, a socket or a file: what the leader knows of its followers,
and what a follower does with an answer.

The high watermark never passes a replica that may be in sync; the set of those changes only as the controller commits
it. Called by `penstock.broker.replicas`, which owns the logs and the time.
"""
