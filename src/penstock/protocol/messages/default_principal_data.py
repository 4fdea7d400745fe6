"""A principal as a forwarded request (Envelope) and a delegation token carry it."""

from penstock.protocol.schema import Message, boolean, string


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    type: str = string()
    name: str = string()
    token_authenticated: bool = boolean()
