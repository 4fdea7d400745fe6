"""Serves the requests of a node. Each API has one handler module, which uses partitions, coordinators and the image.

A handler decides what a request changes, makes the change and returns the response. The dispatcher decodes requests and
encodes responses, so a handler sees only typed messages. Everything runs on the node's one event loop, so no locks are
needed. The composition root (`node`) builds the `Broker` that handlers get.
"""
