"""Finds free ports to listen on."""

import socket


def free_ports(host: str, count: int) -> list[int]:
    """Returns `count` different free ports. Raises OSError.

    Binds all ports before it releases any, so that they differ.
    """
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            held.append(socket.socket(_family(host)))
            held[-1].bind((host, 0))
        return [int(each.getsockname()[1]) for each in held]
    finally:
        for each in held:
            each.close()


def is_free(host: str, port: int) -> bool:
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
