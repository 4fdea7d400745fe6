"""Declares AccessControlEntryRecord, the records of type 18 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, int8, string, uuid


class AccessControlEntryRecord(Message, api_key=18, versions="0", flexible="0+"):
    id: bytes = uuid()
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8()
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()
