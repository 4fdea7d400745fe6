"""Serves Fetch requests: decides which replica a client may read from, keeps fetch sessions (KIP-227), parks fetches.

A pass over the fetched partitions only locates records in the segments. Their bytes are read once, when the response is
certain to be sent. Layer: above `replicas`. Called by the Fetch handler.
"""
