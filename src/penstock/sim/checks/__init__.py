"""Checks: rules that judge the history of a run, the state of the nodes while they run, and their disks at the end.

`docs/guarantees.md` says which promise each rule judges. Checks only read; they never change a run.
"""
