"""Keeps the requests that wait at one partition. Each kind of wait ends with an event:

    a parked fetch of a consumer    when the high watermark moves
    a parked fetch of a follower    when records are appended
    a commit                        when the high watermark has passed an offset: acks=all, coordinators, markers
    a deletion                      when the logs of all living replicas start at an offset: DeleteRecords

A wait ends in the same pass of the event loop in which the offset moves. A partition without waiters allocates no
collections, because a node may have a hundred thousand partitions.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from operator import itemgetter
from typing import Protocol

from penstock.protocol.errors import KafkaError

Pending = tuple[int, "asyncio.Future[None]"]
_offset_of = itemgetter(0)


class ParkedFetch(Protocol):
    def notify(self, appended_bytes: int) -> None:
        """Notifies the parked fetch that about `appended_bytes` more bytes can be read."""
        ...

    def abandon(self) -> None:
        """Ends the wait: the fetch responds at once with the records that are available.

        Called when the partition leaves this node, or when its state changes.
        """
        ...


class PartitionWaiters:
    __slots__ = ("commits", "consumers", "deletions", "followers")

    def __init__(self) -> None:
        self.consumers: dict[ParkedFetch, None] | None = None
        self.followers: dict[ParkedFetch, None] | None = None
        self.commits: deque[Pending] | None = None  # in the order of their offsets
        self.deletions: list[Pending] | None = None

    # Parked fetches.

    def park(self, fetch: ParkedFetch, *, from_follower: bool) -> None:
        """Parks a fetch. It may be notified several times, and stays parked until `unpark` is called for it."""
        if from_follower:
            if self.followers is None:
                self.followers = {}
            self.followers[fetch] = None
        else:
            if self.consumers is None:
                self.consumers = {}
            self.consumers[fetch] = None

    def unpark(self, fetch: ParkedFetch) -> None:
        if self.consumers:
            self.consumers.pop(fetch, None)
        if self.followers:
            self.followers.pop(fetch, None)

    def on_append(self, appended_bytes: int) -> None:
        """Notifies the parked fetches of followers that records were appended."""
        for fetch in tuple(self.followers or ()):
            fetch.notify(appended_bytes)

    def answer_followers(self) -> None:
        """Ends the wait of followers' parked fetches, so that followers learn of a change without new records.

        An example is a new log start offset.
        """
        for fetch in tuple(self.followers or ()):
            fetch.abandon()

    def answer_parked(self) -> None:
        """Ends the wait of all parked fetches: they respond at once with the records that are available."""
        for fetch in (*(self.consumers or ()), *(self.followers or ())):
            fetch.abandon()

    # Offsets to be reached.

    def commit(self, offset: int) -> asyncio.Future[None]:
        """Returns a future that is done when the high watermark has reached `offset`. `fail` fails the future."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        commits = self.commits
        if commits is None:
            commits = self.commits = deque()
        while commits and commits[0][1].done():
            commits.popleft()  # cancelled: they must not pile up while the high watermark does not move
        if not commits or commits[-1][0] <= offset:
            commits.append((offset, future))
        else:
            insort(commits, (offset, future), key=_offset_of)
        return future

    def deletion(self, offset: int) -> asyncio.Future[None]:
        """Returns a future that is done when the low watermark has reached `offset`. `fail` fails the future."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.deletions = [*(self.deletions or ()), (offset, future)]
        return future

    def on_high_watermark(self, mark: int, appended_bytes: int) -> None:
        """Ends the waits for offsets that the high watermark has reached, and notifies parked fetches of consumers."""
        commits = self.commits
        if commits:
            while commits and commits[0][0] <= mark:
                _, future = commits.popleft()
                if not future.done():
                    future.set_result(None)
        for fetch in tuple(self.consumers or ()):
            fetch.notify(appended_bytes)

    def on_low_watermark(self, mark: int) -> None:
        """Ends the waits of deletions whose offset the low watermark has reached."""
        waiting: list[Pending] = []
        for offset, future in self.deletions or ():
            if future.done():
                continue
            if offset <= mark:
                future.set_result(None)
            else:
                waiting.append((offset, future))
        self.deletions = waiting or None

    def fail(self, error: KafkaError) -> None:
        """Fails all waits for commits and deletions, each with a new error object. Parked fetches stay parked."""
        commits, self.commits = self.commits, None
        deletions, self.deletions = self.deletions, None
        for _, future in (*(commits or ()), *(deletions or ())):
            if not future.done():
                future.set_exception(KafkaError(error.code, error.message))
