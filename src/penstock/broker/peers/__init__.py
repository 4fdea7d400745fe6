"""Keeps the connections to other nodes: links by address, brokers by id, and suspected nodes.

A link opens its connection on first use, and again after the connection is lost. Called by replica fetchers,
coordinators and the control plane.
"""
