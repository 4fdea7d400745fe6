"""Limits on clients: quotas (KIP-13, KIP-124, KIP-599, KIP-612) and the rates that they measure.

Time is an argument or comes from the injected clock. Called by the dispatcher, the handlers and the listeners.
"""
