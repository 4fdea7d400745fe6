"""Declares RemoveUserScramCredentialRecord, the records of type 22 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, int8, string


class RemoveUserScramCredentialRecord(Message, api_key=22, versions="0", flexible="0+"):
    name: str = string()
    mechanism: int = int8()
