"""Serves metrics, JSON and a console over HTTP, on the node's own event loop and through its `Network`.

Invariants: only GET and HEAD are served, so HTTP changes nothing; every input of a peer has a limit; metrics only read
counters that the broker needs anyway; a failure ends a connection, never the broker. HTTP is off unless
`penstock.http.listener` is set. Called by `node`.
"""
