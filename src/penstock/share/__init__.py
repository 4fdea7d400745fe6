"""Share groups (KIP-932) without I/O: which member has acquired which record of a partition, and how this is stored.

Pure: requests and the time go in, changes and replies come out; no clock, socket, file or randomness of its own.
Invariants: a record is available, acquired, acknowledged or archived; the last two are final; a record is acquired by
one member at a time and is never delivered more often than the limit. `partition` is the state of the share-partition
leader. Called by the broker.
"""
