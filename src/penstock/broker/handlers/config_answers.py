"""Builds DescribeConfigs responses: a small response is an object, a large response is assembled as bytes.

A short request may have a response of many megabytes, because each broker has 300 configs with documentation. So a
response has at most `MAX_ANSWER_BYTES`, and further resources are refused. Resources that share the same configs, such
as most topics, are cheap: their configs are encoded once per response.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from penstock.broker.requests.encoded_responses import Encoded
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_32_describe_configs import (
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from penstock.protocol.primitives import write_uvarint

#: Limit of configs in a response that stays an object, which fault rules can inspect. Larger ones are encoded at once.
SMALL_CONFIGS = 1_000
#: Limit of bytes in one response: further resources are refused with POLICY_VIOLATION.
MAX_ANSWER_BYTES = 32 << 20
FIRST_FLEXIBLE_VERSION = 4
_INT32 = struct.Struct(">i")


class ConfigAnswer:
    """Collects the results of one DescribeConfigs response."""

    def __init__(self, version: int) -> None:
        self.is_full = False
        self.size = 0
        self._version = version
        self._small: list[DescribeConfigsResult] | None = []
        self._configs = 0
        self._parts: list[bytes] = []
        self._count = 0
        self._shared: dict[int, tuple[list[DescribeConfigsResourceResult], bytes]] = {}  # by the list's id

    def add(self, result: DescribeConfigsResult, *, is_shared: bool = False) -> None:
        """Adds the result of one resource.

        `is_shared` is True if other results have the same configs, as the same list object.
        """
        self._configs += len(result.configs) + 1
        if self._small is not None and self._configs <= SMALL_CONFIGS:
            self._small.append(result)
            return
        self._encode_small()
        self._add(result, is_shared)

    def refuse(self, resource: DescribeConfigsResource) -> None:
        """Adds POLICY_VIOLATION for a resource, because its configs would make the response too large."""
        self._encode_small()
        self._parts.append(_alone(_too_large(resource.resource_type, resource.resource_name), self._version))
        self._count += 1

    def finish(self) -> DescribeConfigsResponse | Callable[[], Encoded]:
        """Returns the response object if the response is small; otherwise a function that assembles its bytes."""
        if self._small is not None:
            return DescribeConfigsResponse(results=self._small)
        flexible = self._version >= FIRST_FLEXIBLE_VERSION
        count = write_uvarint(self._count + 1) if flexible else _INT32.pack(self._count)
        head = _INT32.pack(0) + count  # throttle_time_ms stays 0: throttling mutes the connection instead
        tags = b"\0" if flexible else b""
        return lambda: Encoded(b"".join((head, *self._parts, tags)))

    def _encode_small(self) -> None:
        small, self._small = self._small, None
        for result in small or ():
            self._add(result, is_shared=False)

    def _add(self, result: DescribeConfigsResult, is_shared: bool) -> None:
        parts = self._with_shared(result) if is_shared else (_alone(result, self._version),)
        if self.size + sum(map(len, parts)) > MAX_ANSWER_BYTES:
            self.is_full = True
            parts = (_alone(_too_large(result.resource_type, result.resource_name), self._version),)
        self.size += sum(map(len, parts))
        self._parts += parts
        self._count += 1

    def _with_shared(self, result: DescribeConfigsResult) -> tuple[bytes, bytes]:
        kept = self._shared.get(id(result.configs))
        if kept is None:  # keeps the list alive, so that no other list gets its id
            kept = self._shared[id(result.configs)] = result.configs, _configs(result.configs, self._version)
        bare = DescribeConfigsResult(resource_type=result.resource_type, resource_name=result.resource_name)
        return _without_configs(bare, self._version), kept[1]


def _too_large(resource_type: int, resource_name: str) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=ErrorCode.POLICY_VIOLATION,
        error_message="The response is too large: describe fewer resources at once.",
        resource_type=resource_type,
        resource_name=resource_name,
    )


def _alone(result: DescribeConfigsResult, version: int) -> bytes:
    """Returns the encoded bytes of one result: encodes a response with this result, and cuts the result out of it."""
    whole = encode(DescribeConfigsResponse(results=[result]), version)
    return whole[5:-1] if version >= FIRST_FLEXIBLE_VERSION else whole[8:]


def _without_configs(result: DescribeConfigsResult, version: int) -> bytes:
    """Returns the encoded bytes of a result without its configs, which are its last field."""
    empty = b"\1\0" if version >= FIRST_FLEXIBLE_VERSION else _INT32.pack(0)
    return _alone(result, version)[: -len(empty)]


def _configs(configs: list[DescribeConfigsResourceResult], version: int) -> bytes:
    start = len(_without_configs(DescribeConfigsResult(), version))
    return _alone(DescribeConfigsResult(configs=configs), version)[start:]
