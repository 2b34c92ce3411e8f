"""Whether the operator is alive: asked by the liveness probe, answered from heartbeats of its loops.

kopf does not notice when one of its watches dies (kopf#1276), and an operator that sees nothing looks idle.
`resync` compares what the watches told with a listing, and reports here.
"""

from __future__ import annotations

import time

LATE_SECONDS = 300.0  # a loop that has not come round for so long hangs


class Health:
    def __init__(self) -> None:
        self._beats: dict[str, float] = {}
        self._troubles: dict[str, str] = {}

    def beat(self, name: str) -> None:
        self._beats[name] = time.monotonic()

    def trouble(self, name: str, sentence: str | None) -> None:
        """Sets or, with None, clears a trouble that only a restart mends."""
        if sentence is None:
            self._troubles.pop(name, None)
        else:
            self._troubles[name] = sentence

    def problems(self) -> list[str]:
        now = time.monotonic()
        late = [
            f"{name} has been silent for {now - beat:.0f} s"
            for name, beat in self._beats.items()
            if now - beat > LATE_SECONDS
        ]
        return late + list(self._troubles.values())
