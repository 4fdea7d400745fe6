"""Makes plans: a plan has all settings and events of a run, drawn from its seed before the run begins.

`plan` defines a plan's values, `profiles` lists the kinds of faults that a run may have, and `draw` makes a plan from a
seed. A plan is data: it changes nothing and imports no other package of `sim` except the engine's settings. Called by
all other packages.
"""
