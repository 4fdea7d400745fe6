"""Formats of files in a log's directory, besides the segments."""
