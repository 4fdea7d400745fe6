"""Declares UserScramCredentialRecord, the records of type 11 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, binary, int8, int32, string


class UserScramCredentialRecord(Message, api_key=11, versions="0", flexible="0+"):
    name: str = string()
    mechanism: int = int8()
    salt: bytes = binary()
    stored_key: bytes = binary()
    server_key: bytes = binary()
    iterations: int = int32()
