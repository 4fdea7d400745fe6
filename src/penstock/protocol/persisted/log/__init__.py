"""Declares formats of files in a log's directory, besides the segments."""
