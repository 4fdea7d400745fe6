"""A whole cluster in one process: virtual time, network, disks and clocks, all from one seed.

Nodes run their real code, from frames to files, each on an event loop of its own that one `Timeline` drives. The same
seed gives the same trace, always: nothing here reads a real clock, opens a socket or a file, or starts a thread.
A process that is killed does nothing afterwards: no timer fires, no byte leaves it, its disk view is closed.
Callers: `cli` (`penstock sim`), `testing` (SimCluster) and the tests.
"""
