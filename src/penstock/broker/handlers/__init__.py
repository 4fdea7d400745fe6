"""Contains one module per API key, with a function `handle(broker, ctx, request)`.

The function returns a response, a `Later` (a response that is made later), or None (no response).
"""
