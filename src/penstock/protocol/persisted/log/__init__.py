"""Formats of files that stand beside the segments of a log."""
