"""Declares TopicRecord, the records of type 2 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, string, uuid


class TopicRecord(Message, api_key=2, versions="0", flexible="0+"):
    name: str = string()
    topic_id: bytes = uuid()
