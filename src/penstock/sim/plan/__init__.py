"""Plans: all settings and events of a run, drawn from its seed before the run begins.

`plan` has the values, `profiles` the kinds of faults that a run may have, `draw` makes a plan from a seed. A plan is
data: it changes nothing and imports no other package of `sim` except the engine's settings. Called by all other
packages.
"""
