"""One module per request and response pair, named after its key; headers; what clients hide inside group requests."""
