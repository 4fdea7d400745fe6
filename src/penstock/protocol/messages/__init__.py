"""Declares the messages. Each API has a module with its request and its response. Other modules declare the headers,
and data that is embedded in other messages."""
