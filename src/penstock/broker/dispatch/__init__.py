"""Turns a request frame into a handler call, and the handler's answer into a response frame.

Layer: above the handlers. The dispatcher decodes headers and bodies, routes by API key and version, splits very large
requests, and encodes answers. Called by the listeners that `node` opens.
"""
