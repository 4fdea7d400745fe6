"""The composition root of a running node: the only package that chooses real clocks, disks, sockets and seeds.

A node is one process and one event loop. Start: storage, metadata log, partitions, coordinators, listeners,
registration. Stop: the reverse order; each part first makes durable what it has acknowledged. Called by `cli` and
`testing`.
"""
