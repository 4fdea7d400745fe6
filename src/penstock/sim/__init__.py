"""A whole cluster in one process: virtual time, network, disks and clocks, all from one seed.

Nodes run their real code, from frames to files, each on an event loop of its own that one `Timeline` drives. The same
seed always gives the same trace: nothing here reads a real clock, opens a socket or a file, or starts a thread.
A killed process does nothing afterwards: no timer fires, no byte leaves it, its disk view is closed.
Each package imports only those below it: mutants ► run ► faults ► actors ► checks ► plan ►
engine.
Callers: `cli` (`penstock sim`), `testing` (SimCluster) and the tests.
"""
