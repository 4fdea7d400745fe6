"""Contains one module per API key. `handle(broker, ctx, request)` returns a response, an awaitable of one, or None."""
