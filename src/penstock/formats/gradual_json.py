"""Parses JSON in Python code, so that other threads run meanwhile.

The standard library's parser is written in C and holds Python's GIL until it has finished: while a thread parses a
megabyte of empty lists, the node's event loop is blocked for 60 ms.
"""

from __future__ import annotations

import json
import json.scanner
from collections.abc import Callable
from typing import Any

#: Text of this size is parsed in less than 2 ms by the standard library.
SMALL_BYTES = 16 * 1024

PairsHook = Callable[[list[tuple[str, Any]]], Any]


class _Decoder(json.JSONDecoder):
    def __init__(self, object_pairs_hook: PairsHook | None) -> None:
        super().__init__(object_pairs_hook=object_pairs_hook)
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def loads(data: bytes, object_pairs_hook: PairsHook | None = None) -> Any:
    """Returns the value of JSON text. Call it in a thread if the data is longer than SMALL_BYTES.

    Raises ValueError, or RecursionError for data that is nested too deeply.
    """
    text = data.decode(json.detect_encoding(data), "surrogatepass")
    if len(data) <= SMALL_BYTES:
        return json.loads(text, object_pairs_hook=object_pairs_hook)
    return _Decoder(object_pairs_hook).decode(text)
