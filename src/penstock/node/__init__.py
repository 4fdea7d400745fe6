"""The composition root: one running node. The only place that picks real clocks, disks, sockets and seeds.

A node is one process and one event loop. Start: storage, metadata log, partitions, coordinators, listeners,
registration. Stop: the same backwards, each part told to finish what it has acknowledged. Called by `cli` and
`testing`.
"""
