"""Keeps the TLS certificates of a node's listeners, and of its connections to other nodes, up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from penstock.net.tls import TlsSource

if TYPE_CHECKING:
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage
    from penstock.node.http_security import HttpSecurity
    from penstock.node.listener_security import ListenerSecurity
    from penstock.node.peer_security import PeerSecurity

CHECK_S = 5.0


class Certificates:
    """Reads key stores and trust stores again when a file or a dynamic config has changed."""

    def __init__(
        self,
        settings: Settings,
        listeners: Mapping[str, ListenerSecurity | HttpSecurity],
        peers: Collection[PeerSecurity],
    ) -> None:
        """Watches the key stores and trust stores of these listeners and of the connections to other nodes."""
        self._settings, self._listeners, self._peers = settings, listeners.values(), peers
        for peer in peers:
            for source in (peer.tls, getattr(listeners.get(peer.listener), "tls", None)):
                if isinstance(source, TlsSource):
                    source.among_nodes = True
        #: This node's dynamic configs in its own metadata log; None once the settings have those of an image.
        self._stored: Mapping[str, str] | None = None

    @property
    def in_use(self) -> bool:
        """Returns True if a listener or a connection to another node uses TLS."""
        return any(one.tls is not None for one in self._listeners) or any(one.credentials.tls for one in self._peers)

    def watch(self, stopping: Callable[[], bool]) -> None:
        """Checks at intervals whether certificate files have changed, until `stopping` returns True."""
        if self.in_use and not stopping():
            self.renew()
            asyncio.get_running_loop().call_later(CHECK_S, self.watch, stopping)

    def use_stored(self, image: MetadataImage) -> None:
        """Uses the dynamic configs of `image`, which was read from this node's own metadata log. They may be
        uncommitted.

        A restarted node learns from the quorum which configs are committed. But the quorum may refuse the certificates
        of the properties file, if dynamic configs have replaced them. So the node can't wait for the committed configs.
        """
        self._stored = image.broker_config(self._settings.node_id)
        self.renew()

    def use_settings(self) -> None:
        """Uses the dynamic configs of the node's settings again, instead of the configs that `use_stored` set."""
        self._stored = None
        self.renew()

    def renew(self) -> None:
        for listener in self._listeners:
            listener.refresh(self._settings, self._stored)
        for peer in self._peers:
            peer.refresh(self._settings, self._stored)
