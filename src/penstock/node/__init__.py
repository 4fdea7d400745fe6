"""Composes a running node. This is the only package that chooses real clocks, disks, sockets and seeds.

A node is one process and one event loop. It starts its parts in this order: storage, listeners, metadata log,
registration, partitions and coordinators. A stop first hands over leaderships and closes the storage last; then all
acknowledged data is on disk. Called by `cli` and `testing`.
"""
