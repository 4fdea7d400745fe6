"""Kafka's wire protocol: error codes, ids, message declarations and the codecs compiled from them.

Pure: bytes in, objects out. A decoder raises only DecodeError, whatever the bytes, and allocates in
proportion to its frame. A codec is generated once per (message, version), on first use; message modules are imported
on first use, too. Called by every other package; imports nothing but penstock.check.
"""
