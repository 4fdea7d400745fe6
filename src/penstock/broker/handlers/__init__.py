"""One module per API key: `handle(broker, ctx, request) -> response | awaitable | None`, imported on its first request."""
