"""What a calibration counts of messages is what the engine really moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rank_pool import RankPool
from rank_tasks import talk_here

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.planning.main import make_planner


def test_messages_of_a_pipeline_and_rows_that_ways_swap_are_counted_and_timed(
    ranks: RankPool, job: Callable[..., GNNPipeJob], manifest: Callable[..., dict[str, Any]]
) -> None:
    pipeline, ways = ("gcnii", 6, 2, 1, 4), ("gcnii", 6, 1, 2, 2)
    found = ranks.run(talk_here, 2, manifest(*pipeline), manifest(*ways))
    for kind, shape, messages in (("pipelines", pipeline, 2 * 4), ("swaps", ways, 2 * 2 * 6)):
        ends = [answer[kind][0] for answer in found]
        assert [end["messages"] for end in ends] == [messages] * 2
        assert all(end["cores"] > 0 for end in ends)
        planned = make_planner(job(*shape), Path()).forecast(make_plan(job(*shape))).volume.as_dict()
        moved = planned["pipeline"] + planned["graph"]
        assert sum(end["bytes"] for end in ends) == 2 * moved
