"""Contains the history of a run, the story of the run as text, and the rules that check the history.

Rules compare the answers to clients with the stored records, running nodes with each other, and replicas at the end.
"""
