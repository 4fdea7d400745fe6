"""Defines the order in which the parts of a node get a new metadata image.

Every part is called for every image, one after the other, before the submitter of the change gets its reply. Parts read
each other (a coordinator reads its partition, a partition reads its settings), so the order is defined in one place,
here. If a part fails, the error is logged and the part is called again with the next image; the other parts are called
anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from penstock.metadata.configs.protection import AUTHORIZER, STANDARD_AUTHORIZER
from penstock.metadata.image import EMPTY_IMAGE
from penstock.node.parts import limits_of
from penstock.node.storage import StorageError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.metadata.image import MetadataImage
    from penstock.net.server import Server

logger = logging.getLogger(__name__)


class Since(Enum):
    """Names the moment after which a part of the node gets metadata images."""

    START = "the metadata log starts"
    REGISTERED = "the image has everything that was decided before this node registered"


class ImageListener(NamedTuple):
    since: Since
    apply: Callable[[MetadataImage, MetadataImage], None]


class ImageDelivery:
    def __init__(
        self,
        broker: Broker,
        server: Server,
        *,
        is_broker: bool,
        is_controller: bool,
        on_fatal: Callable[[Exception], None],
        on_settings: Callable[[], None] = lambda: None,
    ) -> None:
        """Creates the delivery. `on_settings` is called when dynamic settings of this node have changed."""
        self._broker = broker
        self._server = server
        self._is_broker = is_broker
        self._on_fatal = on_fatal
        self._on_settings = on_settings
        self._applied = EMPTY_IMAGE
        #: In call order. Listeners that start earlier come first, because they subscribe first.
        self._listeners = (
            # Wakes Metadata requests that wait for the controller's decision about a lost node. They run after all
            # listeners, so they find partitions and coordinators as the new image has them.
            ImageListener(Since.START, broker.peers.suspects.apply),
            # Wakes the tasks that wait for an image. One is the registration, which must finish before parts follow.
            ImageListener(Since.START, broker.lifecycle.apply),
            # Lists failovers and starts elections: reads the image only, none of the parts below.
            *((ImageListener(Since.START, broker.controller.apply),) if is_controller else ()),
            # Settings, then partitions, then replication, as one step: see `_apply`.
            ImageListener(Since.REGISTERED, self._apply),
            # A group coordinator loads from a partition that must already have its role and settings.
            *((ImageListener(Since.REGISTERED, broker.groups.apply),) if is_broker else ()),
            # Transaction markers go to partitions, among them those of the group coordinators.
            *((ImageListener(Since.REGISTERED, broker.transactions.apply),) if is_broker else ()),
            *((ImageListener(Since.REGISTERED, broker.share_states.apply),) if is_broker else ()),
            *((ImageListener(Since.REGISTERED, broker.share_partitions.apply),) if is_broker else ()),
            *((ImageListener(Since.REGISTERED, broker.event_topic.apply),) if broker.event_topic is not None else ()),
        )

    def start(self) -> None:
        """Subscribes the parts that get images even before this node has registered.

        Call this before the metadata log starts.
        """
        self._subscribe(Since.START)

    def follow(self) -> None:
        """Applies the current image and all later images to the parts of the node.

        Call it only after the image contains all records written before this node registered. Raises StorageError if
        the image has ACLs but no authorizer is set.
        """
        image = self._broker.metadata.image
        if image.acls and self._broker.access is None:
            raise _unprotected(image)
        self._apply(EMPTY_IMAGE, image)
        if self._is_broker:
            self._broker.partitions.put_strays_aside()
        self._subscribe(Since.REGISTERED)

    def _subscribe(self, since: Since) -> None:
        for listener in self._listeners:
            if listener.since is since:
                self._broker.metadata.subscribe(listener.apply)

    def _apply(self, _: MetadataImage, new: MetadataImage) -> None:
        """Applies the new image to the parts of the node.

        The parts get all changes since the last image that was applied without a failure.
        """
        old, broker = self._applied, self._broker
        if broker.access is not None:
            broker.access.apply_image(None if old is EMPTY_IMAGE else old, new)
        elif new.acls:
            self._on_fatal(_unprotected(new))
            return
        if new.configs is not old.configs:
            self._apply_configs(new)  # first, because all other parts read settings
        if self._is_broker:
            before = None if old is EMPTY_IMAGE else old
            broker.partitions.apply(before, new)
            broker.replicas.apply(before, new)  # replication follows partitions, which must exist
        broker.quotas.apply_image(new)
        broker.telemetry.apply_image(old, new)
        broker.token_macs.update(new.delegation_tokens)
        self._applied = new

    def _apply_configs(self, new: MetadataImage) -> None:
        settings = self._broker.settings
        if settings.apply_image(new):
            # max.connections may change while running
            self._server.limit_connections(limits_of(settings, self._server.network))
            self._cordon(settings.cordoned_log_dirs())
            self._on_settings()
        self._broker.fetch_policy.settings_changed()

    def _cordon(self, wanted: frozenset[str]) -> None:
        """Marks the log directories in `cordoned.log.dirs` as cordoned, and sends a heartbeat at once.

        Cordoned directories get no new replicas.
        """
        logs = self._broker.logs
        if wanted == logs.dirs.cordoned:
            return
        logs.dirs.cordon(wanted)
        logger.info(
            "these log directories are cordoned and get no new partitions: %s", ", ".join(sorted(wanted)) or "none"
        )
        self._broker.lifecycle.beat_now()


def _unprotected(image: MetadataImage) -> StorageError:
    """Returns the error for a node without an authorizer in a cluster with ACLs: the node would not enforce the
    ACLs."""
    return StorageError(
        f"The metadata log holds ACLs ({len(image.acls)}), and this node has no authorizer: set {AUTHORIZER}="
        f"{STANDARD_AUTHORIZER} on every node, or remove the ACLs with kafka-acls first."
    )
