"""The `penstock` command: one module per noun, each with `configure(parser)` and the functions its verbs run.

`main` imports only the module of the requested noun, so that `penstock --help` stays quick. A verb returns
an exit code of `exit`, or raises `exit.Failure` with one sentence that includes the remedy; nothing else prints errors.
Results go to stdout through `output` and remarks for a person to stderr, so that stdout can always be piped.
No other package imports this one.
"""
