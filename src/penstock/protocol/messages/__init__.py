"""Declares the messages. Each API has a module with its request and response. Other modules declare headers, and data
inside group requests."""
