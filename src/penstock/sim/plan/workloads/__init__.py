"""Workloads: plans in which certain kinds of actors meet, for the profile of the same name.

`registry` has one function per workload. The function takes the plan that a seed has under any profile and returns
another one with the workload's topics, actors and settings. All draws come from new random streams, so plans of other
profiles stay as they are. Called by `draw` only.
"""
