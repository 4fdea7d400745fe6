"""Checks the metadata images that nodes publish, and the decisions that controllers answer.

    published metadata      images of different nodes at one offset are equal; a node publishes every committed record
    snapshots of metadata   the records of a snapshot build the image that the snapshot was made of
    one set of voters       the nodes of a healed cluster know the same voters
    answered decisions      the records of an answered decision are committed, and are those that were decided

`checks/quorum_logs.py` compares the logs from which the images are built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from penstock.broker.controlplane.metadata_log import MetadataLog
from penstock.metadata.apply import apply
from penstock.metadata.image import EMPTY_IMAGE, KRAFT_VERSION, MetadataImage
from penstock.metadata.snapshot import records_of
from penstock.sim.checks.taps import Tap
from penstock.sim.engine.machine import Machine, State

PUBLISHED = "published metadata"
SNAPSHOTS = "snapshots of metadata"
VOTERS = "one set of voters"
ANSWERED = "answered decisions"
#: Images that are kept for the comparison with images of slower nodes, by offset.
KEPT_IMAGES = 500


class PublishedMetadata:
    def __init__(self, machines: Sequence[Machine], violated: Callable[[str, str], None]) -> None:
        self._machines = machines
        self._violated = violated
        #: Offset → the first image that was published at this offset, and the node that published it.
        self._images: dict[int, tuple[MetadataImage, str]] = {}
        #: The decision that is being made: its records are appended before any other code runs.
        self._deciding: _Decision | None = None
        self._reported: set[str] = set()

    def taps(self) -> list[Tap]:
        return [
            Tap(MetadataLog, "submit", self._submitting, answer=True),
            Tap(MetadataLog, "_append", self._appended),
        ]

    def serves(self, machine: Machine) -> None:
        """Watches the images of a node that has started."""
        broker = machine.broker
        if broker is None or not isinstance(broker.metadata, MetadataLog):
            return  # another version of the code has image classes of its own

        def published(_: MetadataImage, new: MetadataImage) -> None:
            self.published(machine.name, new)

        self.published(machine.name, broker.metadata.image)
        broker.metadata.subscribe(published)

    def published(self, name: str, image: MetadataImage) -> None:
        """Compares an image with the first image that was published at the same offset."""
        known = self._images.get(image.offset)
        if known is None:
            self._images[image.offset] = image, name
            if len(self._images) > KEPT_IMAGES:
                del self._images[next(iter(self._images))]
            return
        first, by = known
        if different := ", ".join(_differing(first, image)):
            self._broken(
                PUBLISHED, f"{different} at offset {image.offset} differ between the images of {by} and {name}"
            )

    def look(self) -> None:
        """Checks that each node has published all decisions that it knows as committed. Called between two turns."""
        for machine in self._machines:
            broker = machine.broker
            if broker is None or machine.state is not State.SERVING:
                continue
            metadata = broker.metadata
            committed = metadata.log.high_watermark - 1
            head = metadata._unpublished[0] if metadata.leading and metadata._unpublished else None
            if head is not None and head.offset > committed and head.epoch == metadata.leader_epoch:
                continue  # a leader publishes control records and parts of a decision with the rest of the decision
            if not metadata.log.offline and metadata.image.offset < committed:
                self._broken(
                    PUBLISHED,
                    f"{machine.name} has published offset {metadata.image.offset}, and offset {committed} is committed",
                )

    def compare_healed(self) -> None:
        """Compares what the nodes of a healed cluster know: the voters, and each image with its own snapshot."""
        voters: dict[Any, str] = {}
        for machine in self._machines:
            broker = machine.broker
            if broker is None or machine.state is not State.SERVING or not isinstance(broker.metadata, MetadataLog):
                continue
            self._snapshot(machine.name, broker.metadata.image)
            voters.setdefault(broker.metadata.quorum().voters, machine.name)
        if len(voters) > 1:
            known = "; ".join(f"{name} knows {[voter.key for voter in each]}" for each, name in voters.items())
            self._broken(VOTERS, known)

    def _snapshot(self, name: str, image: MetadataImage) -> None:
        if image.open_transaction is not None:
            return  # a node takes no snapshot now
        # The version of the quorum's protocol is in a control record of the snapshot, not among these records.
        protocol = {key: level for key, level in image.features.items() if key == KRAFT_VERSION}
        restored = apply(EMPTY_IMAGE, records_of(image), offset=image.offset, epoch=image.epoch)
        restored = replace(restored, features={**restored.features, **protocol})
        if different := ", ".join(_differing(restored, image)):
            self._broken(SNAPSHOTS, f"a snapshot of {name} at offset {image.offset} would restore other {different}")

    # Decisions.

    def _submitting(self, metadata: MetadataLog, decide: Callable[..., Any]) -> Callable[[Any], None]:
        decision = self._deciding = _Decision(metadata)

        def answered(_: Any) -> None:
            if decision.end_offset and (problem := decision.problem()):
                self._broken(ANSWERED, problem)

        return answered

    def _appended(self, metadata: MetadataLog, records: Sequence[Any]) -> None:
        decision, self._deciding = self._deciding, None
        if decision is not None and decision.metadata is metadata:
            decision.end_offset, decision.epoch = metadata.log.log_end_offset, metadata.leader_epoch

    def _broken(self, rule: str, what: str) -> None:
        """Reports the first violation of each rule; ignores later violations."""
        if rule not in self._reported:
            self._reported.add(rule)
            self._violated(rule, what)


def _differing(first: MetadataImage, other: MetadataImage) -> list[str]:
    """Returns the names of the fields in which two images differ."""
    compared = (field.name for field in fields(MetadataImage) if field.compare)
    return [name for name in compared if getattr(first, name) != getattr(other, name)]


class _Decision:
    """Holds the end offset and the leader epoch of a decision's records."""

    def __init__(self, metadata: MetadataLog) -> None:
        self.metadata = metadata
        self.end_offset = 0
        self.epoch = 0

    def problem(self) -> str:
        """Returns what is wrong with the answer at this moment; an empty string if the records are committed."""
        log, last = self.metadata.log, self.end_offset - 1
        if log.high_watermark < self.end_offset:
            return f"a decision was answered at high watermark {log.high_watermark}; its last record has offset {last}"
        if last >= log.log_start_offset and (epoch := log.epochs.epoch_for_offset(last)) != self.epoch:
            return f"a decision with offset {last} in epoch {self.epoch} was answered; the log has epoch {epoch} there"
        return ""
