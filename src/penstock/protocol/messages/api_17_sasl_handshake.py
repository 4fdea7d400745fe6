"""Declares the request and the response of SaslHandshake: API key 17, versions 0 to 1."""

from penstock.protocol.schema import Message, array, int16, string


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    mechanism: str = string()


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    error_code: int = int16()
    mechanisms: list[str] = array(string)
