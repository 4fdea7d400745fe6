"""Sends and receives frames over sockets: the broker's listeners, and the one place where connections are opened.

Invariants: one request of a connection is in progress at a time and answers go out in order, whole; every buffer is
bounded by a named limit; nothing a peer sends reaches another connection. Called by `node` (listeners) and `client`.
Knows sizes and bytes, not Kafka's messages: the dispatcher decodes the frames.
"""
