"""Fetch requests: which client may read from which replica, fetch sessions (KIP-227), and parked fetches.

A pass over the fetched partitions locates bytes; the bytes are read once, when the answer is certain. Layer: above
`replicas`. Called by the Fetch handler.
"""
