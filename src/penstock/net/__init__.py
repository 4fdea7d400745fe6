"""Sends and receives frames over sockets: opens the broker's listeners, and the connections to other nodes.

Invariants: a connection handles one request at a time, and sends whole responses in the order of the requests; every
buffer is bounded by a named limit; bytes of one peer never reach another connection. Called by `node` (listeners) and
`client`. This package knows only sizes and bytes: the dispatcher decodes Kafka's messages.
"""
