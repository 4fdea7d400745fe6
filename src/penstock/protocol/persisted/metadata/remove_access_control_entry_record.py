"""Declares RemoveAccessControlEntryRecord, the records of type 19 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, uuid


class RemoveAccessControlEntryRecord(Message, api_key=19, versions="0", flexible="0+"):
    id: bytes = uuid()
