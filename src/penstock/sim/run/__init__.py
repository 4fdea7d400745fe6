"""Runs: the simulation of a plan, scenario scripts, `SimCluster` for user code, shrinking and the report page.

The top package of `sim`: it imports all others. Called by `cli`, `testing` and the tests.
"""
