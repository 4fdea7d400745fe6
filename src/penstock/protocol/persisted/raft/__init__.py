"""Declares the control records of the metadata quorum, and its state file."""
