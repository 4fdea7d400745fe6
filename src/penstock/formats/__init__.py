"""Decodes keys and values in Avro, Protobuf and JSON into values that JSON can hold, and finds their schemas.

Invariants: decoding is pure Python and bounded in depth, in the number of values and in the size of their text, so a
thread that decodes gives the event loop its turn; a value that can't be decoded raises FormatError with a reason for a
person; only the operator chooses the schema directory and the registry. The REST API and `penstock consume` call
`views`; the Spark source uses the framing and the descriptors.
"""
