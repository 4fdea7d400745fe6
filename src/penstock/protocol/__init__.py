"""Implements Kafka's wire protocol: error codes, ids, message declarations and the codecs compiled from them.

The package is pure: it does no I/O. For any bytes, a decoder raises only DecodeError and uses memory in proportion to
the frame. A codec is generated once per (message, version), on first use; message modules are imported on first use
too. Called by every other package; imports only penstock.check.
"""
