"""Declares the encoding of a principal in a forwarded request (Envelope) and in a delegation token."""

from penstock.protocol.schema import Message, boolean, string


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    type: str = string()
    name: str = string()
    token_authenticated: bool = boolean()
