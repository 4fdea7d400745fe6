"""Detects replicas that lie or rot: pure functions over observations, and the count that leads to a quarantine.

`broker.guard` makes the observations (it asks replicas what they serve) and acts on the findings. Rules: a node is
accused of different content only by a majority of at least three replicas; the word of one node never counts against
another; a checksum that fails is its own proof.
"""
