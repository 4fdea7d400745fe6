"""DescribeConfigs of very many topics, put together from bytes: most topics have the same configs, encoded once.

`kafka-topics --describe` asks for the configs of all topics in one request; encoding 34 configs for each of ten
thousand topics anew would hold the loop for seconds. Here each costs its name.
"""

from __future__ import annotations

import struct
from typing import Any

from penstock.broker.encoded import Encoded
from penstock.protocol.codec import encode
from penstock.protocol.messages.api_32_describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from penstock.protocol.primitives import write_uvarint

# Fewer are not worth it: the answer as an object can still be looked into by fault rules.
MANY = 32
FIRST_FLEXIBLE_VERSION = 4
_INT32 = struct.Struct(">i")


def encode_many(
    results: list[DescribeConfigsResult],
    shared: list[DescribeConfigsResourceResult],
    version: int,
    kept: dict[str, Any],
) -> Encoded:
    """The response with these results, of which many have `shared` as their configs. `kept` keeps its bytes."""
    key = f"bytes {version} {id(shared)}"
    if key not in kept:
        kept[key] = _configs(shared, version)
    configs = kept[key]
    flexible = version >= FIRST_FLEXIBLE_VERSION
    count = write_uvarint(len(results) + 1) if flexible else _INT32.pack(len(results))
    parts = [_INT32.pack(0), count]  # throttle_time_ms is told by muting
    for result in results:
        if result.configs is shared:
            result.configs = []
            parts += (_without_configs(result, version), configs)
        else:
            parts.append(_alone(result, version))
    if flexible:
        parts.append(b"\0")  # no tagged fields
    return Encoded(b"".join(parts))


def _alone(result: DescribeConfigsResult, version: int) -> bytes:
    """One result, cut out of a response of its own."""
    whole = encode(DescribeConfigsResponse(results=[result]), version)
    return whole[5:-1] if version >= FIRST_FLEXIBLE_VERSION else whole[8:]


def _without_configs(result: DescribeConfigsResult, version: int) -> bytes:
    """Up to where the array of configs begins: it is the last field."""
    empty = b"\1\0" if version >= FIRST_FLEXIBLE_VERSION else _INT32.pack(0)
    return _alone(result, version)[: -len(empty)]


def _configs(configs: list[DescribeConfigsResourceResult], version: int) -> bytes:
    start = len(_without_configs(DescribeConfigsResult(), version))
    return _alone(DescribeConfigsResult(configs=configs), version)[start:]
