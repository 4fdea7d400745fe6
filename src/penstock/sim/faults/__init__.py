"""Faults: the nemesis and its planned, aimed and cluster-wide faults, machines that lost data, and planted bugs.

Faults act on the engine's machines and links; planted bugs replace one rule of the node's code by a wrong one.
"""
