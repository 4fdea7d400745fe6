"""Simulates a whole cluster in one process: time, network, disks and clocks are virtual, and one seed determines all.

Nodes run their real code, from frames to files. Each node has its own event loop, and one `Timeline` drives all loops.
The same seed always gives the same trace: no code here reads a real clock, opens a socket or a file, or starts a
thread. A killed process does nothing afterwards: no timer fires, it sends no byte, and its disk view is closed. Each
package imports only packages to its right in this list: mutants ► run ► faults ► actors ► checks ► plan ► engine.
Called by `cli` (`penstock sim`), `testing` (SimCluster) and the tests.
"""
