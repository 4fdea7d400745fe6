"""Reads from the kernel how many bytes a connection sent and received, so that counting costs nothing per request.

Only Linux has these counts (bytes_acked and bytes_received of `struct tcp_info`, read with `TCP_INFO`).
"""

import asyncio
import socket
import struct
import sys
from typing import NamedTuple

KNOWN = sys.platform == "linux"
_COUNTS = struct.Struct("=QQ")
_COUNTS_AT = 120


class Traffic(NamedTuple):
    received: int
    sent: int


NONE = Traffic(0, 0)


def traffic_of(transport: asyncio.BaseTransport) -> Traffic:
    """Returns the number of bytes that a connection received, and the number of sent bytes that the peer acknowledged.

    Returns zeros on systems other than Linux and for simulated connections.
    """
    if sys.platform != "linux":
        return NONE
    sock = transport.get_extra_info("socket")
    if sock is None:
        return NONE
    try:
        info: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS_AT + _COUNTS.size)
    except OSError:  # the socket is closed already
        return NONE
    if len(info) < _COUNTS_AT + _COUNTS.size:  # a kernel older than 4.1
        return NONE
    sent, received = _COUNTS.unpack_from(info, _COUNTS_AT)
    return Traffic(received, sent)
