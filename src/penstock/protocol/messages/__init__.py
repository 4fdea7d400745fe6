"""One module per request and response pair, named after its key; headers; the data of clients inside group requests."""
