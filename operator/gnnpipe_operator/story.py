"""A decision in the making: what `decide` has found out and settled so far about one job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from gnnpipe_api.status import JobStatus, Phase
from gnnpipe_operator.actions import Accepted, Action, Decision, EmitEvent
from gnnpipe_operator.conditions import tell
from gnnpipe_operator.observed import ObservedJob


@dataclass(slots=True)
class Story:
    job: ObservedJob
    now: datetime
    status: JobStatus
    accepted: Accepted | None = None
    events: list[EmitEvent] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    wakes: list[datetime] = field(default_factory=list)

    def event(self, kind: str, reason: str, message: str, key: str) -> None:
        self.events.append(EmitEvent(kind, reason, message, key))

    def act(self, actions: Iterable[Action]) -> None:
        self.actions.extend(actions)

    def wake(self, at: datetime | None) -> None:
        if at is not None:
            self.wakes.append(at)

    def tell(self, phase: Phase, reason: str, message: str, *, created: bool) -> None:
        generation = self.job.generation
        self.status = tell(
            self.status, phase, reason, message, created=created, generation=generation, now=self.now
        )

    def update(self, **fields: object) -> None:
        self.status = self.status.model_copy(update=fields)

    def decision(self) -> Decision:
        """A status that says nothing new is the old one, so that nobody writes it."""
        wake_at = min(self.wakes, default=None)
        return Decision(self.status, tuple(self.events), tuple(self.actions), wake_at, self.accepted)
