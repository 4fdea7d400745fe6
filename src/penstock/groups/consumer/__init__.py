"""Consumer groups of KIP-848: the coordinator assigns, members converge to the assignment heartbeat by heartbeat.

Three epochs: the group's rises with every change of membership, subscription or topics; the assignment's follows when
a new target is computed; a member's follows when it has given up what the target takes from it. A partition is given
to its new owner only when the old one has let go. All of it is durable: `journal.py` is the only writer, the rest
decides.
"""
