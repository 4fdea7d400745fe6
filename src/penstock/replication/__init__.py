"""Decides for the replication of one partition: what a leader knows of its followers, and how a follower reacts to
answers.

The package decides without a clock, a socket or a file. The high watermark never passes the log end of a replica that
may be in sync, and the in-sync set changes only when the controller commits it. Called by `penstock.broker.replicas`,
which owns the logs and the clock.
"""
