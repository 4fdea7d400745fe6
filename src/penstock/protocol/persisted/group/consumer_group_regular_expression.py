"""Declares ConsumerGroupRegularExpression, the records of type 16 in `__consumer_offsets`."""

from penstock.protocol.schema import Message, array, int64, string


class ConsumerGroupRegularExpressionKey(Message, api_key=16, versions="0"):
    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Message, api_key=16, versions="0", flexible="0+"):
    topics: list[str] = array(string)
    version: int = int64()
    timestamp: int = int64()
