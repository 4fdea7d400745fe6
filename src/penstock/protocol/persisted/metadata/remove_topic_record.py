"""Declares RemoveTopicRecord, the records of type 9 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, uuid


class RemoveTopicRecord(Message, api_key=9, versions="0", flexible="0+"):
    topic_id: bytes = uuid()
