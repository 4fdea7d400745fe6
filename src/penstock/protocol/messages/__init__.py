"""One module per pair of request and response, named after its API key; headers; and client data inside group
requests."""
