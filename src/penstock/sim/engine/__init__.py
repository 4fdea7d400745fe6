"""Virtual machines: event loops on one timeline, clocks, links, connections, disks, and the machines made of them.

Deterministic: everything random comes from the run's seed. Nothing here knows workloads, faults or rules.
"""
