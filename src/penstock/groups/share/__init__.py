"""Membership of share groups (KIP-932): the coordinator assigns partitions, and several members may share one.

There is nothing to revoke: a member's epoch follows the assignment at once. A partition is assigned only after the
share coordinator has a state for it; until then it is in the list of initializing partitions. All of this is durable:
only `journal.py` writes, the other modules decide.
"""
