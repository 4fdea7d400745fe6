"""Building blocks that the dispatcher, the handlers and the control plane share for one request.

Request context, error responses in the shape of any API, responses that are finished later or arrive as bytes, work
that is spread over several passes of the loop, and fault rules. Layer: lowest of `broker`; imports nothing above it.
"""
