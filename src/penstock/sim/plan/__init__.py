"""Plans: everything that a seed means, drawn before the run begins.

`plan` has the values, `profiles` the kinds of faults that a run may have, `draw` makes a plan from a seed. A plan is
data: it changes nothing and knows no other package of `sim` except the engine's settings. Called by all other packages.
"""
