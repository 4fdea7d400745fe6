"""Defines the configurer, a simulated client that changes configs of topics while other clients use these topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.client.admin import Admin
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from penstock.sim.actors.session import Session
from penstock.sim.checks.history import ConfigChange, Outcome


@dataclass(frozen=True, slots=True)
class ConfigurerOptions:
    changes: Mapping[str, Sequence[tuple[str, Sequence[str | None]]]]
    """Topic → its configs that may change, each with the values to choose from; None removes the config."""
    pause_s: float = 1.0


class Configurer:
    def __init__(self, session: Session, options: ConfigurerOptions) -> None:
        self.session = session
        self.options = options

    async def run(self) -> None:
        await self.session.repeat(lambda client: self._change(Admin(client)), self.options.pause_s)

    async def _change(self, admin: Admin) -> None:
        session = self.session
        topic = session.random.choice(list(self.options.changes))
        name, values = session.random.choice(self.options.changes[topic])
        value = session.random.choice(values)
        change = ConfigChange(topic, name, value, session.now)
        session.history.configs.append(change)
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        await admin.alter_configs(ResourceType.TOPIC, topic, [(name, operation, value)])
        change.outcome, change.ended = Outcome.DONE, session.now
        session.note(f"config {topic} {name}={value}")
