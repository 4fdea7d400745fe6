"""Reads the attributes of a certificate's subject from its DER form.

If an attribute's type has no short name, Java writes the object identifier of the type. Python's `ssl` does not return
this identifier.
"""

from __future__ import annotations

from collections.abc import Iterator

_VERSION = 0xA0
#: Position of the subject behind the optional version: serial number, algorithm, issuer, validity, subject.
_SUBJECT = 4


def raw_attributes(certificate: bytes) -> list[tuple[str, str]]:
    """Returns the attributes of the subject in their order: the object identifier, and the value's DER form in hex.

    Raises ValueError if the certificate can't be parsed.
    """
    try:
        _, _, start, end = next(_items(certificate, 0, len(certificate)))
        _, _, start, end = next(_items(certificate, start, end))
        fields = [field for field in _items(certificate, start, end) if field[0] != _VERSION]
        _, _, start, end = fields[_SUBJECT]
        return [
            _attribute(certificate, *attribute[2:])
            for names in _items(certificate, start, end)
            for attribute in _items(certificate, *names[2:])
        ]
    except (IndexError, StopIteration):
        raise ValueError("the certificate's subject can't be parsed") from None


def _attribute(data: bytes, start: int, end: int) -> tuple[str, str]:
    (_, _, first, last), (_, value, _, until) = _items(data, start, end)
    return _identifier(data[first:last]), data[value:until].hex()


def _items(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields (tag, start, start of the content, end) for each DER element between two positions."""
    while start < end:
        length, content = data[start + 1], start + 2
        if length & 0x80:
            size = length & 0x7F
            length, content = int.from_bytes(data[content : content + size], "big"), content + size
        if content + length > end:
            raise IndexError
        yield data[start], start, content, content + length
        start = content + length


def _identifier(content: bytes) -> str:
    """Returns an object identifier in its dotted form, such as 2.5.4.3."""
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
