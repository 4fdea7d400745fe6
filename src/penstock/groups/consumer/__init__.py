"""Implements consumer groups (KIP-848): the coordinator assigns partitions to members, in the responses to their
heartbeats.

There are three epochs. The group epoch increases with every change of membership, subscription or topics. The
assignment epoch is set to the group epoch when a new target assignment is computed. A member's epoch is set to the
assignment epoch when the member has revoked the partitions that are not in its target. A partition goes to its new
owner only after the old owner has released it. All of this state is durable: only `journal.py` writes it, the other
modules decide.
"""
