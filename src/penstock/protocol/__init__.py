"""Kafka's wire protocol: error codes, ids, message declarations and the codecs compiled from them.

Pure: bytes in, objects out. Only DecodeError leaves a decoder, whatever the bytes, and a frame bounds what it may
allocate. A codec is generated once per (message, version), on first use; message modules are imported on first use
too. Called by every other package; imports nothing but penstock.check.
"""
