"""Counts the partitions that a request creates and deletes against the controller mutation quota (KIP-599).

Newer versions of the requests are strict: once the quota is used up, further topics are refused with
THROTTLING_QUOTA_EXCEEDED until the rate is back at its limit. Older versions are permissive: all topics are created or
deleted, and the response has the throttle time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.broker.limits.quotas import Quotas
    from penstock.broker.requests.context import RequestContext


class Mutations:
    """Counts one request's partitions against the quota of its client.

    `throttle_ms` is the throttle time for the response.
    """

    __slots__ = ("_bucket", "_now_ms", "_strict", "throttle_ms")

    def __init__(self, quotas: Quotas, ctx: RequestContext, *, strict: bool) -> None:
        limited = quotas.mutation
        self._bucket = limited.meter(ctx.principal, ctx.client_id) if limited.limits else None
        self._now_ms = ctx.now_ms
        self._strict = strict
        self.throttle_ms = 0

    def charge(self, partitions: int) -> None:
        """Counts created or deleted partitions of one topic. Raises KafkaError if the quota is used up."""
        bucket = self._bucket
        if bucket is None:
            return
        if not self._strict:
            self.throttle_ms = bucket.take(partitions, self._now_ms)
            return
        self.throttle_ms = bucket.excess_ms(self._now_ms)
        if self.throttle_ms:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                "The controller mutation quota is exceeded: retry after the throttle time.",
            )
        bucket.take(partitions, self._now_ms)  # the last topic that fits may exceed the quota, as in Kafka
