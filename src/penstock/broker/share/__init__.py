"""Implements the share-partition leader (KIP-932): delivers records of partitions that this node leads to share groups.

`share_partitions` keeps one `LedSharePartition` for each group and partition in use; `share_fetch` serves a ShareFetch.
`penstock.share` makes the decisions, and the share coordinator stores the state. An acknowledgement is answered after
the state has been written. If the state can't be loaded, the client gets an error and the state is loaded again later;
it is never replaced by an empty state.
"""
