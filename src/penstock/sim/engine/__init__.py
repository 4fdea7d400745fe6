"""Simulates event loops, networks, disks, clocks and machines in virtual time. One seed determines all of them.

`Environment` builds these parts. The engine imports no workloads, faults or rules. Called by all other packages.
"""
