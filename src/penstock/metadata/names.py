"""Checks whether a topic name is legal and whether it collides with another name. Makes random ids of topics."""

from __future__ import annotations

import re
from random import Random

from penstock.protocol.uuid import METADATA_TOPIC_ID, ZERO_UUID, uuid_to_str

MAX_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """Returns the reason why `name` is not a legal topic name; None if it is legal."""
    if not name:
        return "a name needs at least one character."
    if name in (".", ".."):
        return f"'{name}' has a special meaning in file systems."
    if len(name) > MAX_NAME_LENGTH:
        return f"'{name}' has {len(name)} characters, and at most {MAX_NAME_LENGTH} are allowed."
    if _LEGAL.fullmatch(name) is None:
        return f"'{name}' has characters other than a-z, A-Z, 0-9, '.', '_' and '-'."
    return None


def may_collide(name: str) -> bool:
    return "." in name or "_" in name


def collision_key(name: str) -> str:
    """Returns the name with underscores instead of dots, as metrics show it. Two topics with the same key cannot
    coexist."""
    return name.replace(".", "_")


def random_uuid(random: Random) -> bytes:
    """Returns a version 4 UUID. Its text does not begin with a dash, which a command line would read as an option."""
    while True:
        value = bytearray(random.randbytes(16))
        value[6] = value[6] & 0x0F | 0x40
        value[8] = value[8] & 0x3F | 0x80
        found = bytes(value)
        if found not in (ZERO_UUID, METADATA_TOPIC_ID) and not uuid_to_str(found).startswith("-"):
            return found
