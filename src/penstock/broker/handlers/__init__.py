"""One module per API key: `handle(broker, ctx, request)` returns a response, an awaitable of a response, or None."""
