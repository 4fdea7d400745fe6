"""Connections to other nodes: links by address, brokers by id, and suspected nodes.

A link is opened on first use and again after it was lost. Called by replica fetchers, coordinators and the control
plane.
"""
