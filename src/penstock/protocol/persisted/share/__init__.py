"""Records of `__share_group_state`."""
