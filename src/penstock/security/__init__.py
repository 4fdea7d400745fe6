"""Authenticates and authorizes clients, with pure functions: credentials, SASL exchanges and ACLs.

Nothing in this package reads a clock, a socket or a file. The authorizer is an index over the ACLs of one metadata
image; when the ACLs change, the composition root makes a new authorizer. `net` and `client` use the SASL exchanges,
`broker` uses the authorizer.
"""
