"""Declares ShareGroupMemberMetadata, the records of type 10 in `__consumer_offsets`."""

from penstock.protocol.schema import Message, array, string


class ShareGroupMemberMetadataKey(Message, api_key=10, versions="0"):
    group_id: str = string()
    member_id: str = string()


class ShareGroupMemberMetadataValue(Message, api_key=10, versions="0", flexible="0+"):
    rack_id: str | None = string(nullable=True)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
