"""The error of an authentication that failed."""

from __future__ import annotations


class SaslError(Exception):
    """An exchange that can't succeed. The message is one sentence, which the peer may see: it holds no secret."""
