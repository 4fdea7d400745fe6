"""Serves metrics, JSON, a REST API and a console over HTTP, on the node's own event loop and through its `Network`.

Invariants: only the REST API under /v1 changes anything, for a caller that `guard` has admitted; every input of a peer
has a limit; metrics only read counters that the broker needs anyway; a failure ends a connection, never the broker.
HTTP is off unless `penstock.http.listener` is set. Called by `node`.
"""
