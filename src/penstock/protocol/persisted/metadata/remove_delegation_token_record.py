"""Declares RemoveDelegationTokenRecord, the records of type 26 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, string


class RemoveDelegationTokenRecord(Message, api_key=26, versions="0", flexible="0+"):
    token_id: str = string()
