"""Taps methods of the node's code: inside a `with` block, an observer is called before or after a method.

The node's code does not know that it is observed. An observer does not wait, draws no random number, schedules no
callback and changes nothing in the node, so a run has the same trace with and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple


class Tap(NamedTuple):
    owner: type
    method: str
    observer: Callable[..., Any]
    """The function to call, with the arguments of the observed method."""
    before: bool = False
    """True: the observer is called before the method; False: after the method has returned."""
    answer: bool = False
    """True: the method is a coroutine. The observer is called before it and returns a function that gets the result."""


@contextmanager
def tapped(taps: Sequence[Tap]) -> Iterator[None]:
    before = [(tap.owner, tap.method, tap.owner.__dict__[tap.method]) for tap in taps]
    for tap in taps:
        setattr(tap.owner, tap.method, _observed(tap.owner.__dict__[tap.method], tap))
    try:
        yield
    finally:
        for owner, method, code in reversed(before):
            setattr(owner, method, code)


def _observed(code: Callable[..., Any], tap: Tap) -> Callable[..., Any]:
    observer = tap.observer
    if tap.answer:

        @wraps(code)
        async def call(*args: Any, **kwargs: Any) -> Any:
            answered = observer(*args, **kwargs)
            result = await code(*args, **kwargs)
            if answered is not None:
                answered(result)
            return result

    elif tap.before:

        @wraps(code)
        def call(*args: Any, **kwargs: Any) -> Any:
            observer(*args, **kwargs)
            return code(*args, **kwargs)

    else:

        @wraps(code)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = code(*args, **kwargs)
            observer(*args, **kwargs)
            return result

    return call
