"""Contains one module per API key.

Its function `handle(broker, ctx, request)` returns a response, a `Later` (a response that is made later), or None.
"""
