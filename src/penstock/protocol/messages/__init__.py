"""Declares the messages: a module for each API with its request and response, headers, and data inside group
requests."""
