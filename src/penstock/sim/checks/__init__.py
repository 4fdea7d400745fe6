"""Checks: the history of a run, the story for its reader, and the rules that judge it.

Rules compare what clients were told with what is stored, nodes with each other while they run, and replicas at the end.
"""
