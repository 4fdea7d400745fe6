"""Contains the parts with which the dispatcher, the handlers and the control plane serve one request.

These are the request's context, error responses of every API, encoded responses, long work in slices, and fault rules.
Lowest layer of `broker`: it imports no other package of `broker`.
"""
