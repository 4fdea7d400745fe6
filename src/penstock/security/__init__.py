"""Authentication and authorization of clients, as pure functions: credentials, SASL exchanges and ACLs.

Nothing in this package reads a clock, a socket or a file. The authorizer is an index over the ACLs of one metadata
image; the composition root makes a new one when an image with other ACLs arrives. `net` and `client` use the SASL
exchanges, `broker` uses the authorizer.
"""
