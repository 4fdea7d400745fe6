"""Contains one module per API key. `handle(broker, ctx, request)` returns a response, a `Later` of it, or None."""
