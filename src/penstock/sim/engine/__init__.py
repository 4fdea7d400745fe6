"""The engine: event loop, network, disk, clock and machines in virtual time, drawn from one seed.

`Environment` builds them all. The engine knows no workload, no faults and no rules. Called by all other packages.
"""
