"""RemoveDelegationTokenRecord: type 26 of the records in `__cluster_metadata`."""

from penstock.protocol.schema import Message, string


class RemoveDelegationTokenRecord(Message, api_key=26, versions="0", flexible="0+"):
    token_id: str = string()
