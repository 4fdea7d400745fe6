"""Checks: the history of a run, the story for its reader, and the rules that judge it.

Rules compare the answers to clients with the stored records, running nodes with each other, and replicas at the end.
"""
