"""Authenticates and authorizes clients, without I/O: credentials, SASL exchanges and ACLs.

Nothing in this package reads a clock, a socket or a file. The authorizer is an index over the ACLs of the metadata
image; `broker` adds and removes ACLs when the image changes. `net` and `client` use the SASL exchanges, `broker` uses
the authorizer.
"""
