"""The `penstock` command: one module per noun, each with `configure(parser)` and the functions its verbs run.

`main` imports only the module of the noun that was asked for, so that `penstock --help` stays quick. A verb returns
an exit code of `exit`, or raises `exit.Failure` with one sentence that says what to do; nothing else prints errors.
Results go to stdout through `output`, everything said to a human goes to stderr, so that stdout can always be piped.
Nobody imports this package.
"""
