"""Serves the requests of a node: one handler module per API, over partitions, coordinators and the metadata image.

Handlers are `decode → decide → effects → reply`; the dispatcher decodes and encodes, so a handler sees typed messages
only. Everything runs on the node's one event loop: no locks here. The composition root (`node`) builds the `Broker`
that handlers get.
"""
