"""Records of `__consumer_offsets`: offsets and the state of every kind of group."""
