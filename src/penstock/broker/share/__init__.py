"""The share-partition leader (KIP-932): delivers records of the partitions that this node leads to share groups.

`share_partitions` keeps one `LedSharePartition` for each group and partition in use; `share_fetch` serves a ShareFetch.
`penstock.share` decides, the share coordinator stores. An acknowledgement is answered after it has been written. A
state that can't be loaded is an error to the client and is loaded again; it is never replaced by an empty one.
"""
