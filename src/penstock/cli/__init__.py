"""Implements the `penstock` command: one module per noun, with `configure(parser)` and the functions of its verbs.

`main` imports only the module of the requested noun, so that `penstock --help` stays quick. A verb returns an exit code
that `exit` defines, or raises `exit.Failure` with one sentence that includes the remedy; `main` prints it. Results go
to stdout through `output`, and notes for a person go to stderr, so that stdout can always be piped. No other package
imports `cli`.
"""
