"""Converts ids of topics, directories and incarnations between sixteen bytes and Kafka's text (URL-safe base64)."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error

UUID_BYTES = 16
ZERO_UUID = bytes(UUID_BYTES)
METADATA_TOPIC_ID = bytes(15) + b"\x01"
TEXT_LENGTH = 22


def uuid_to_str(value: bytes) -> str:
    return urlsafe_b64encode(value)[:TEXT_LENGTH].decode("ascii")


def uuid_from_str(text: str) -> bytes:
    """Parses an id. Raises ValueError unless `text` is the 22-character form of sixteen bytes."""
    if len(text) > TEXT_LENGTH + 2:
        raise ValueError(f"an id must have {TEXT_LENGTH} characters, not {len(text)}")
    try:
        value = urlsafe_b64decode(text.rstrip("=") + "==")
    except (Base64Error, ValueError) as error:
        raise ValueError(f"{text!r} is not a base64 id") from error
    if len(value) != UUID_BYTES:
        raise ValueError(f"an id must have {UUID_BYTES} bytes, but {text!r} has {len(value)}")
    return value
