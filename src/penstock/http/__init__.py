"""HTTP beside Kafka's protocol: metrics, JSON and a console, on the node's own loop and through its `Network`.

Invariants: only GET and HEAD are served, so HTTP changes nothing; every input of a peer has a limit; metrics read
counters that the broker keeps anyway, none exist for metrics alone; a failure ends a connection, never the broker.
HTTP is off unless `penstock.http.listener` is set. Called by `node`.
"""
