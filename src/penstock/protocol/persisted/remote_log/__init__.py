"""Declares the records of `__remote_log_metadata`."""
