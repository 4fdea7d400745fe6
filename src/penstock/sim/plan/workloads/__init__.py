"""Makes workloads: plans that bring certain kinds of actors together. Each workload belongs to the profile with the
same name.

`registry` has one function per workload. The function takes the seed's plan and returns a plan with the workload's
topics, actors and settings. All draws come from new random streams, so plans of other profiles do not change. Called by
`draw` only.
"""
