"""Decodes keys and values in Avro, Protobuf and JSON into values that JSON can hold, and finds their schemas.

Invariants: decoding is pure Python, so a thread that decodes does not block the event loop; the depth, the number of
values and the size of their text are limited; a value that can't be decoded raises FormatError with the reason; only
the operator chooses the schema directory and the registry. The REST API and `penstock consume` call `views`; the Spark
source uses `descriptors`.
"""
