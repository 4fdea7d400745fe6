"""Generates mutants (small bugs) from the node's code, and measures how many of them the tests detect.

`operators`, `places` and `catalogue` are pure: they turn source text into mutants. `hook` puts one mutant into a
process, in memory, so the source files never change. `worker` runs in that process; `forks` starts it with all tests
imported; `covering` chooses the tests of a mutant; `runner` starts workers under limits and keeps their results in a
file; `summary` counts. A mutant belongs to the development half or to the held-out half by the hash of its id. Called
by `cli` (`penstock sim --mutants`) and the tests.
"""
