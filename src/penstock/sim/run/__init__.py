"""Runs the simulation of a plan, scenario scripts, and user code in a `SimCluster`; shrinks runs and reports on them.

This is the top package of `sim`: it imports all others. Called by `cli`, `testing` and the tests.
"""
