"""Where a rank stands: its stage, its way, its neighbours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """Ranks are numbered stage by stage, so the ways of one stage sit in one pod."""

    stages: int
    ways: int
    rank: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.stages * self.ways:
            raise ValueError(f"rank {self.rank} does not exist in {self.stages} stages x {self.ways} ways")

    @property
    def stage(self) -> int:
        return self.rank // self.ways

    @property
    def way(self) -> int:
        return self.rank % self.ways

    @property
    def world(self) -> int:
        return self.stages * self.ways

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    @property
    def is_exact(self) -> bool:
        """One stage sees the whole graph at every layer: no history, exact gradients."""
        return self.stages == 1

    def rank_of(self, stage: int, way: int | None = None) -> int:
        """The rank at that stage, in this rank's way unless another is named."""
        return stage * self.ways + (self.way if way is None else way)

    def stage_ranks(self, stage: int) -> list[int]:
        return [self.rank_of(stage, way) for way in range(self.ways)]

    @property
    def other_ways(self) -> list[int]:
        return [way for way in range(self.ways) if way != self.way]
