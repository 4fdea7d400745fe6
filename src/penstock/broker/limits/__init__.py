"""Limits clients with quotas (KIP-13, KIP-124, KIP-599, KIP-612), and measures their rates.

Time is an argument or comes from the injected clock. Called by the dispatcher, the handlers and the listeners.
"""
