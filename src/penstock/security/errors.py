"""Defines the error that a failed authentication raises."""

from __future__ import annotations


class SaslError(Exception):
    """Raised if an authentication can't succeed.

    The message is one sentence without secrets, because the peer may see it.
    """
