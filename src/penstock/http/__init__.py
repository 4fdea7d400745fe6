"""HTTP beside Kafka's protocol: metrics, JSON and a console, on the node's own loop and through its `Network`.

Invariants: only GET and HEAD, so nothing can be changed from here; everything that a peer controls has a limit; what
is shown was counted anyway, nothing is counted for being shown; whatever fails here costs its connection, never the
broker. Off unless `penstock.http.listener` is set. Called by `node`.
"""
