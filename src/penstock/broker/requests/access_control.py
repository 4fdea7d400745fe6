"""Checks a client's access with the authorizer: the ACLs of the current image, and the super users. Logs denials."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.requests.context import ANONYMOUS
from penstock.net.limits import LimitedLog
from penstock.protocol.apis import APIS
from penstock.security.authorizer import Authorizer
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation

if TYPE_CHECKING:
    from penstock.broker.requests.context import RequestContext
    from penstock.metadata.image import AclImage, MetadataImage

logger = logging.getLogger(__name__)

#: Characters of a name that a log line shows.
SHOWN = 200
OnDenied = Callable[["RequestContext", Operation, AclResource, str], None]


class AccessControl:
    """Implements the authorizer of a node. Until the first image is applied, only super users have access."""

    def __init__(
        self,
        *,
        super_users: frozenset[str],
        allow_without_acls: bool,
        seconds: Callable[[], float] = lambda: 0.0,
        on_denied: OnDenied | None = None,
    ) -> None:
        """Creates the authorizer. It calls `on_denied` for each denial; the audit file then gets a line."""
        self._super_users = super_users
        self._allow_without_acls = allow_without_acls
        self._authorizer = Authorizer(super_users=super_users)
        self._acls: Mapping[bytes, AclImage] = {}
        self._log = LimitedLog(logger, seconds)
        self._on_denied = on_denied

    def apply_image(self, old: MetadataImage | None, new: MetadataImage) -> None:
        before, after = self._acls, new.acls
        if old is None:  # the first image: from now on, resources without ACLs may be open
            self._authorizer = Authorizer(super_users=self._super_users, allow_without_acls=self._allow_without_acls)
            before = {}
        if before is not after:
            self._authorizer.change(
                [after[acl_id] for acl_id in after.keys() - before.keys()],
                [before[acl_id] for acl_id in before.keys() - after.keys()],
            )
        self._acls = after

    def allows(self, ctx: RequestContext, operation: Operation, resource: AclResource, name: str) -> bool:
        """Returns True if the client may do the operation on the resource; logs a denial."""
        connection = ctx.connection  # the code of `sees` again, to save a call for each Produce and Fetch
        if self._authorizer.allows(connection.principal or ANONYMOUS, connection.peer_host, operation, resource, name):
            return True
        self._log.info(APIS[ctx.api_key].name, partial(_denial, ctx, operation, resource, name))
        if self._on_denied is not None:
            self._on_denied(ctx, operation, resource, name)
        return False

    def allows_cluster(self, ctx: RequestContext, operation: Operation) -> bool:
        return self.allows(ctx, operation, AclResource.CLUSTER, CLUSTER_NAME)

    def sees(self, ctx: RequestContext, operation: Operation, resource: AclResource, name: str) -> bool:
        """Returns True if the client may do the operation on the resource; does not log a denial.

        Callers use this method to hide resources from the client, not to refuse requests.
        """
        return self._authorizer.allows(ctx.principal, ctx.connection.peer_host, operation, resource, name)

    def sees_any(self, ctx: RequestContext, operation: Operation, resource: AclResource) -> bool:
        """Returns True if the client may do the operation on at least one resource of this kind."""
        return self._authorizer.allows_any(ctx.principal, ctx.connection.peer_host, operation, resource)

    def operations(self, ctx: RequestContext, resource: AclResource, name: str) -> int:
        """Returns the operations that the client may do on the resource, as bits of `authorized_operations`."""
        return self._authorizer.operations(ctx.principal, ctx.connection.peer_host, resource, name)


def visible_topics(access: AccessControl | None, ctx: RequestContext) -> Callable[[str], bool]:
    """Returns a function that takes a topic's name and returns True if the client may describe the topic."""
    if access is None:
        return lambda _: True
    return lambda topic: access.sees(ctx, Operation.DESCRIBE, AclResource.TOPIC, topic)


def _denial(ctx: RequestContext, operation: Operation, resource: AclResource, name: str) -> str:
    """Returns the log line for a denial.

    Names come from clients: repr() escapes line breaks, and long names are cut.
    """
    return (
        f"Principal {ctx.principal[:SHOWN]!r} was denied {operation.name} on {resource.name} {name[:SHOWN]!r} for "
        f"{APIS[ctx.api_key].name} from host {ctx.connection.peer_host}: add an ACL if this client should be allowed."
    )
