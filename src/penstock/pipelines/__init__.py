"""Provides ready-made pipelines: each pipeline is a function that builds a Spark query, which Spark runs.

Invariants: checkpoints, retries, shuffles and state are left to Spark; a pipeline that is started again continues where
it stopped and writes no record twice; a user's error is reported in one sentence (SourceError).
`penstock pipeline …` calls these functions; users can call them with their own session. Needs the extra
`penstock[spark]`.
"""
