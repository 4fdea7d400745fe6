"""Reads the settings that name the sources of record schemas: a directory and a schema registry."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

from penstock.net.tls import TlsError, client_context, read_file, read_material
from penstock.node.listeners import ListenerError

if TYPE_CHECKING:
    from penstock.formats.registry import Registry
    from penstock.formats.schemas import Schemas
    from penstock.metadata.configs.settings import Settings

DIRECTORY = "penstock.schemas.dir"
REGISTRY = "penstock.schema.registry."
URL = f"{REGISTRY}url"
USER = f"{REGISTRY}basic.auth.user.info"
TRUSTED = ("ssl.truststore.location", "ssl.truststore.password")


def plan_schemas(settings: Settings) -> Schemas:
    """Returns the sources of schemas that the settings name. Raises ListenerError."""
    from penstock.formats.schemas import Schemas

    directory = settings.str(DIRECTORY).strip()
    if directory and not os.path.isdir(directory):
        raise ListenerError(f"{DIRECTORY}={directory} is not a directory: create it, or remove the property.")
    return Schemas(directory, _registry(settings))


def _registry(settings: Settings) -> Registry | None:
    url = settings.str(URL).strip()
    if not url:
        return None
    from penstock.formats.registry import Registry

    trusted = {name: settings.optional_str(REGISTRY + name) for name in TRUSTED}
    named = {name: value for name, value in trusted.items() if value}
    try:
        tls = client_context(named, read_material(named, read_file)) if named else ssl.create_default_context()
        return Registry(url, settings.optional_str(USER) or "", tls)
    except TlsError as problem:
        raise ListenerError(f"{REGISTRY}{problem}") from None
    except ValueError as problem:
        raise ListenerError(f"{URL} can't be used: {problem}.") from None
