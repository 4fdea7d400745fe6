"""Ready-made pipelines: each is a function that builds a Spark query and leaves the running of it to Spark.

Invariants: what Spark can do (checkpoints, retries, shuffles, state) is never done here; a pipeline that is started
again goes on where it was and doubles nothing. Whatever the user got wrong is one sentence (SourceError).
`penstock pipeline …` calls them, and users can, with a session of their own. Needs the extra `penstock[spark]`.
"""
