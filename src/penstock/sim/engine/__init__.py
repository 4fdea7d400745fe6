"""The engine: event loop, network, disk, clock and machines in virtual time, drawn from one seed.

`Environment` builds all of them. The engine imports no workloads, faults or rules. Called by all other packages.
"""
