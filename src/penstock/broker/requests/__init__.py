"""Building blocks with which the dispatcher, the handlers and the control plane serve one request.

The request's context, error responses of every API, encoded responses, long work in slices, and fault rules. Layer:
lowest of `broker`; imports nothing above it.
"""
