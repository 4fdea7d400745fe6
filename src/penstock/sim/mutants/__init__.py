"""Mutants: small bugs that are generated from the node's code, to measure how many of them the tests detect.

`operators`, `places` and `catalogue` are pure: source text in, mutants out. `hook` puts one mutant into a fresh process
at import, so the source tree is never written. `worker` is that process; `runner` starts workers under limits and keeps
their results in a file; `summary` counts. A mutant belongs to the development half or to the held-out half by the hash
of its id. Called by `cli` (`penstock sim --mutants`) and the tests.
"""
