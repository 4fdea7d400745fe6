"""Contains the rules of replication: how a leader tracks its followers, and how a follower reacts to Fetch responses.

The package decides without a clock, a socket or a file. The high watermark never passes the log end of a replica that
may be in sync, and the in-sync set changes only when the controller commits it. Called by `penstock.broker.replicas`,
which owns the logs and the clock.
"""
