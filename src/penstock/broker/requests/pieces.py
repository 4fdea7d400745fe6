"""Splits a request with very many elements into smaller requests (pieces), and joins their responses.

The pieces are handled one by one. A piece contains some of the topics; the partitions of a large topic can be spread
over several pieces. To join the results, this module pairs the arrays of request and response, as `error_replies` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.broker.requests.error_replies import clone, identity, pair
from penstock.protocol.apis import response_class
from penstock.protocol.schema import Field, Struct


def cut(request: Any, version: int, size: int) -> Iterator[Any]:
    """Splits a request. Yields smaller requests, each with at most `size` elements in its deepest arrays."""
    for piece, _ in _cut(request, version, size):
        yield piece


def join(response: Any, piece: Any, api_key: int, request_type: type[Struct], version: int) -> Any:
    """Adds the results in `piece` to `response` and returns `response`.

    `piece` is the response to the next part of a split request.
    """
    _join(response, piece, request_type, response_class(api_key), version)
    return response


def size(request: Any) -> tuple[int, int]:
    """Returns the length of the request's longest top-level array, and the total number of elements in all arrays."""
    arrays = [getattr(request, field.name) or () for field in type(request).FIELDS if field.kind == "array"]
    return max(map(len, arrays), default=0), _elements(request)


def _elements(struct: Any) -> int:
    count = 0
    for field in type(struct).FIELDS:
        if field.kind == "array":
            items = getattr(struct, field.name) or ()
            count += len(items)
            if isinstance(field.item, type):
                count += sum(map(_elements, items))
    return count


def _array(struct_type: type[Struct], version: int) -> Field | None:
    return next((field for field in struct_type.FIELDS if field.kind == "array" and field.exists_in(version)), None)


def _cut(struct: Any, version: int, size: int) -> Iterator[tuple[Any, int]]:
    """Splits a struct. Yields (smaller struct, its number of elements)."""
    field = _array(type(struct), version)
    items = None if field is None else getattr(struct, field.name)
    if field is None or not items:
        yield struct, 1
        return
    piece: list[Any] = []
    count = 0
    for item in items:
        for part, elements in _cut(item, version, size) if isinstance(item, Struct) else ((item, 1),):
            if piece and count + elements > size:
                yield _with(struct, field, piece), count
                piece, count = [], 0
            piece.append(part)
            count += elements
    yield _with(struct, field, piece), count


def _with(struct: Any, field: Field, items: list[Any]) -> Any:
    new = clone(struct)
    setattr(new, field.name, items)
    return new


def _join(mine: Any, theirs: Any, request_type: Any, response_type: Any, version: int) -> None:
    paired = pair(request_type, response_type, version)
    if paired is None:
        return
    name = paired.response.name
    items, more = getattr(mine, name), getattr(theirs, name)
    asked = paired.request.item
    if items and more and isinstance(asked, type) and identity(items[-1]) == identity(more[0]):
        _join(items[-1], more[0], asked, paired.response.item, version)  # both have a part of the same item
        more = more[1:]
    items += more
