"""Consumer groups of KIP-848: the coordinator assigns, and members converge to the assignment with each heartbeat.

There are three epochs. The group epoch increases with every change of membership, subscription or topics. The
assignment epoch follows when a new target is computed. A member epoch follows when the member has revoked the
partitions that the target takes from it. A partition goes to its new owner only after the old owner has released it.
All of this is durable: only `journal.py` writes, the other modules decide.
"""
