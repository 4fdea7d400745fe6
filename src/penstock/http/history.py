"""Holds the samples that consoles plot: the rates of topics, and the lags of groups."""

from __future__ import annotations

from penstock.http.lag_history import LagHistory
from penstock.http.rate_history import RateHistory

PROPERTY = "penstock.history.interval.ms"


class History:
    """Holds the samples since the node started; at the default interval, at most those of the last hour."""

    def __init__(self, interval_ms: int = 0) -> None:
        self.rates = RateHistory()
        self.lags = LagHistory(interval_ms * 9 // 10)  # a sample may come a little early
