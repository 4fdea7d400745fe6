"""Injects faults: the nemesis (fault injector) carries out the planned faults, and planted bugs show that the rules
detect violations.

Faults act on a `FaultTarget`: machines, links and actors of a run. `lost_machines` limits how many machines may have
lost data at a time; `supervisor` starts machines again. A planted bug replaces one function of the node by a wrong
function.
"""
