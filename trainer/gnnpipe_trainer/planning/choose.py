"""Which plans are worth a look for so many GPUs, and which of them to take."""

from __future__ import annotations

from dataclasses import dataclass

from gnnpipe_api.plan import Plan, make_plan
from gnnpipe_trainer.planning.forecast import Forecast, Planner

SLOTS_PER_STAGE = (2, 4, 8)
ABOUT_THE_SAME = 1.03  # forecasts are no better than that
WORTH_BEING_STALE = 0.95  # a plan with history must be this much quicker than the best exact one


@dataclass(frozen=True)
class Choice:
    forecasts: list[Forecast]  # the best number of chunks of every (stages, ways), pipeline first, graph last
    best: Forecast
    reason: str


def choose(planner: Planner, ranks: int) -> Choice:
    """Forecast every way to use `ranks` ranks and pick one; what the manifest fixes stays fixed."""
    forecasts = [_quickest(planner, plans) for plans in candidates(planner, ranks)]
    if not forecasts:
        raise ValueError(
            f"--gpus: {ranks} ranks cannot share {planner.graph.vertices} vertices and "
            f"{planner.job.spec.model.layers} layers; use fewer"
        )
    return _pick(forecasts)


def best_plan(planner: Planner, most_ranks: int) -> Plan:
    """For auto: the best plan on at most so many ranks that keeps what the manifest fixes."""
    asked = planner.job.spec.parallelism
    forecasts = [
        _quickest(planner, plans)
        for ranks in range(1, most_ranks + 1)
        for plans in candidates(planner, ranks)
        if asked.stages in ("auto", plans[0].stages) and asked.ways in ("auto", plans[0].ways)
    ]
    if not forecasts:  # more ranks are fixed than there are: as the manifest says
        return make_plan(planner.job)
    return _pick(forecasts).best.plan


def _quickest(planner: Planner, plans: list[Plan]) -> Forecast:
    return min((planner.forecast(plan) for plan in plans), key=lambda forecast: forecast.seconds)


def _pick(forecasts: list[Forecast]) -> Choice:
    fitting = [forecast for forecast in forecasts if forecast.fits]
    fastest = min(fitting or forecasts, key=lambda f: f.seconds if fitting else f.peak_bytes)
    exact = [f for f in fitting if f.plan.stages == 1 and f.seconds * WORTH_BEING_STALE <= fastest.seconds]
    best = exact[0] if exact else fastest
    return Choice(forecasts, best, reason(best, forecasts))


def candidates(planner: Planner, ranks: int) -> list[list[Plan]]:
    """For every (stages, ways) that uses all ranks, the numbers of chunks to try."""
    layers, asked = planner.job.spec.model.layers, planner.job.spec.parallelism
    shapes = [
        (ranks // ways, ways) for ways in range(1, ranks + 1) if ranks % ways == 0 and ranks // ways <= layers
    ]
    own = make_plan(planner.job)
    plans = []
    for stages, ways in shapes:
        if isinstance(asked.chunks, int) and (stages, ways) == (own.stages, own.ways) and stages > 1:
            choices = [asked.chunks // ways]  # the manifest's number is meant for the manifest's cut
        elif stages == 1:
            choices = [1]
        else:
            choices = [factor * stages for factor in SLOTS_PER_STAGE]
        room = [slots for slots in choices if slots * ways <= planner.graph.vertices]
        if room:
            plans.append([planner.plan(stages, ways, slots) for slots in room])
    return plans


def reason(best: Forecast, forecasts: list[Forecast]) -> str:
    """Why, in a sentence."""
    others = [forecast for forecast in forecasts if forecast.mode != best.mode]
    if not best.fits:
        return (
            f"No plan fits into the memory of a rank; {_name(best)} comes nearest: use more GPUs, "
            "history mode shift, or spec.parallelism.recompute."
        )
    if not others:
        return f"{_name(best)} is the only way to use this many GPUs with this many layers."
    rival = min(others, key=lambda forecast: forecast.seconds)
    if not rival.fits and rival.seconds < best.seconds:
        return f"{_name(best)}: {_name(rival)} would be quicker but does not fit into the memory of a rank."
    if best.mode == "graph":
        if rival.seconds < best.seconds:
            return (
                f"{_name(best)} is exact, and {_name(rival)}, {_ratio(best, rival)} as quick, "
                "does not make up for its stale embeddings."
            )
        return (
            f"{_name(best)} is the quickest, and exact: bytes between ranks cost less here than filling "
            "a pipeline."
        )
    graph = next((f for f in forecasts if f.mode == "graph"), rival)
    saved = graph.volume.total / max(1, best.volume.total)
    return (
        f"{_name(best)} moves {saved:.1f} times fewer bytes than graph parallelism, idles "
        f"{100 * best.epoch.bubble:.0f}% of the time and is {_ratio(rival, best)} as quick as {_name(rival)}."
    )


def _ratio(slow: Forecast, quick: Forecast) -> str:
    ratio = slow.seconds / quick.seconds
    return f"{ratio:.2f} times" if ratio > ABOUT_THE_SAME else "about"


def _name(forecast: Forecast) -> str:
    plan = forecast.plan
    return {
        "pipeline": f"a pipeline of {plan.stages} stages",
        "hybrid": f"hybrid with {plan.stages} stages of {plan.ways} ways",
        "graph": f"graph parallelism over {plan.ways} ways",
        "single": "a single rank",
    }[forecast.mode]
