"""Declares the records of `__consumer_offsets`: offsets and the state of every kind of group."""
