"""Faults: the nemesis carries out the planned faults, and planted bugs check that the rules detect violations.

Faults act on a `FaultTarget`: machines, links and actors of a run. `lost_machines` bounds how much may be lost at a
time; `supervisor` starts machines again. A planted bug replaces one rule of the node's code by a wrong one.
"""
