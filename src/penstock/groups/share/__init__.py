"""Manages members of share groups (KIP-932): the coordinator assigns partitions, and members may share a partition.

Partitions need not be revoked first: a member gets its new epoch and assignment in one step. A partition is assigned
only after the share coordinator has a state for it; until then it is in the list of initializing partitions. All of
this state is durable: only `journal.py` writes it, the other modules decide.
"""
