"""Declares the records of `__cluster_metadata`."""
