"""Fetch requests: which replica may be read by which client, sessions (KIP-227), and long polls.

A pass over the wanted partitions locates bytes; the bytes are read once, when the answer is certain. Layer: above
`replicas`. Called by the Fetch handler.
"""
