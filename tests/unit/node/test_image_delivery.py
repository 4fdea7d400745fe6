"""Tests that a new metadata image is passed to the parts of a node in a fixed order."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.metadata.image import EMPTY_IMAGE, MetadataImage
from penstock.node.image_delivery import ImageDelivery

FIRST = replace(EMPTY_IMAGE, version=1)
SECOND = replace(EMPTY_IMAGE, version=2)
FROM_THE_START = ["suspects", "lifecycle", "controller"]
IN_ONE_STEP = ["access", "partitions", "replicas", "quotas", "telemetry", "token_macs"]
COORDINATORS = ["groups", "transactions", "share_states", "share_partitions"]
ONCE_REGISTERED = [*IN_ONE_STEP, *COORDINATORS, "event_topic"]


class Parts:
    """Replaces a broker: each part notes when it gets a metadata image."""

    def __init__(self, *, is_broker: bool = True, is_controller: bool = True) -> None:
        self.called: list[str] = []
        self.broken: set[str] = set()
        self.befores: list[MetadataImage | None] = []
        self.listeners: list[Any] = []
        self.metadata = SimpleNamespace(image=FIRST, subscribe=self.listeners.append)
        for name in (*FROM_THE_START[1:], *ONCE_REGISTERED):
            note = self._noting(name)
            setattr(self, name, SimpleNamespace(apply=note, apply_image=note, update=note))
        cast(Any, self).partitions.put_strays_aside = lambda: self.called.append("strays")
        self.peers = SimpleNamespace(suspects=SimpleNamespace(apply=self._noting("suspects")))
        self.delivery = ImageDelivery(
            cast(Any, self),
            cast(Any, None),
            is_broker=is_broker,
            is_controller=is_controller,
            on_fatal=lambda error: self.called.append(f"fatal: {error}"),
        )

    def _noting(self, name: str) -> Any:
        def apply(*images: MetadataImage) -> None:
            self.called.append(name)
            if name == "partitions":
                self.befores.append(images[0])
            if name in self.broken:
                raise ValueError(name)

        return apply

    def show(self, new: MetadataImage) -> list[str]:
        """Passes a new image to the node. Returns the names of the parts that got it, in order."""
        old, self.metadata.image = self.metadata.image, new
        self.called.clear()
        for listener in self.listeners:
            try:
                listener(old, new)
            except ValueError as error:
                self.called.append(f"{error} failed")
        return list(self.called)


def test_metadata_image_before_the_broker_registration_does_not_reach_the_partitions() -> None:
    parts = Parts()
    parts.delivery.start()
    assert parts.show(SECOND) == FROM_THE_START


@pytest.mark.parametrize(
    ("is_broker", "is_controller", "expected"),
    [
        (True, True, [*FROM_THE_START, *ONCE_REGISTERED]),
        (True, False, [*FROM_THE_START[:2], *ONCE_REGISTERED]),
        (False, True, [*FROM_THE_START, "access", "quotas", "telemetry", "token_macs", "event_topic"]),
    ],
)
def test_components_of_a_node_receive_each_metadata_image_in_a_fixed_order(
    is_broker: bool, is_controller: bool, expected: list[str]
) -> None:
    parts = Parts(is_broker=is_broker, is_controller=is_controller)
    parts.delivery.start()
    parts.delivery.follow()
    assert parts.show(SECOND) == expected


def test_logs_of_partitions_that_are_not_in_the_first_metadata_image_are_renamed_as_stray() -> None:
    parts = Parts()
    parts.delivery.start()
    parts.delivery.follow()
    assert parts.called == [*IN_ONE_STEP, "strays"]
    assert parts.befores == [None]


def test_component_that_failed_to_apply_an_image_gets_the_missed_changes_with_the_next_image() -> None:
    parts = Parts()
    parts.delivery.start()
    parts.delivery.follow()
    parts.broken.add("replicas")
    called = parts.show(SECOND)
    assert called[-7:] == ["replicas", "replicas failed", *COORDINATORS, "event_topic"]
    parts.broken.clear()
    parts.show(replace(SECOND, version=3))
    assert parts.befores == [None, FIRST, FIRST]
