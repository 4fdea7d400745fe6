"""Contains the history of a run, the run's story as text, and the rules that judge the history.

Rules compare the answers to clients with the stored records, running nodes with each other, and replicas at the end.
"""
