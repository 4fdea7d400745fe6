"""One module per API key: `handle(broker, ctx, request)` gives a response, an awaitable of one, or None."""
