"""Declares ClearElrRecord, the records of type 28 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, string


class ClearElrRecord(Message, api_key=28, versions="0", flexible="0+"):
    topic_name: str = string()
