"""Defines the error that a failed authentication raises."""

from __future__ import annotations


class SaslError(Exception):
    """Raised if an authentication can't succeed.

    The message is one sentence without secrets, because the peer may see it. `reason` is for the operator; by default
    it is the message.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = message if reason is None else reason
