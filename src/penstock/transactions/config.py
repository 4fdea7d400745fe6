"""Defines the broker settings for transactions, which are read from the properties once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

# The methods below have the names of builtins.
_Int: TypeAlias = int
_Bool: TypeAlias = bool


class SettingsSource(Protocol):
    def int(self, name: str, /) -> _Int: ...
    def bool(self, name: str, /) -> _Bool: ...


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    abort_retry_ms: int = 10_000
    """Pause before the next attempt to abort a timed-out transaction."""
    two_phase_commit: bool = False
    """True if external coordinators may keep transactions open without a timeout (KIP-939)."""

    @classmethod
    def from_settings(cls, settings: SettingsSource) -> TransactionConfig:
        return cls(
            max_timeout_ms=settings.int("transaction.max.timeout.ms"),
            id_expiration_ms=settings.int("transactional.id.expiration.ms"),
            abort_retry_ms=settings.int("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            two_phase_commit=settings.bool("transaction.two.phase.commit.enable"),
        )
