"""Runs: what a seed means, one run from power-on to verdict, scenario scripts, shrinking and the report page.

The only package of `sim` that knows all the others. Called by `cli`, `testing` and the tests.
"""
