"""Composes a running node. This is the only package that chooses real clocks, disks, sockets and seeds.

A node is one process and one event loop. The start order is: storage, metadata log, partitions, coordinators,
listeners, registration. The stop order is the reverse; each part first writes all acknowledged data to disk. Called by
`cli` and `testing`.
"""
