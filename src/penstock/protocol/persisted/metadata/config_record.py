"""Declares ConfigRecord, the records of type 4 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, int8, string


class ConfigRecord(Message, api_key=4, versions="0", flexible="0+"):
    resource_type: int = int8()
    resource_name: str = string()
    name: str = string()
    value: str | None = string(nullable=True)
