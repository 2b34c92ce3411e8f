"""Which plans are worth a look for so many GPUs, and which of them to take."""

from __future__ import annotations

from dataclasses import dataclass

from gnnpipe_api.plan import Plan, make_plan
from gnnpipe_api.spec_parallelism import ParallelismSpec
from gnnpipe_trainer.planning.forecast import Forecast, Planner

SLOTS_PER_STAGE = (2, 4, 8)
ABOUT_THE_SAME = 1.03  # forecasts are no better than that
WORTH_BEING_STALE = 0.95  # a plan with history must be this much quicker than the best exact one
EVERY_NUMBER_UP_TO = (
    8  # beyond, auto tries 12, 16, 24, 32 ...: each number of ranks costs a cut of the graph or more
)


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


class NoPlan(ValueError):
    """Nothing that the manifest leaves open can run on this graph; the sentence says why."""


def choose_for_auto(planner: Planner, most_ranks: int) -> Choice:
    """The best plan on at most so many ranks that keeps what the manifest fixes."""
    asked = planner.job.spec.parallelism
    forecasts = [
        _quickest(planner, kept)
        for ranks in ranks_to_try(most_ranks, asked.fixed_ranks)
        for plans in candidates(planner, ranks)
        if (kept := [plan for plan in plans if _keeps(plan, asked)])
    ]
    if not forecasts:
        raise NoPlan(
            f"spec.parallelism: no plan on at most {most_ranks} ranks has stages {asked.stages}, ways {asked.ways} "
            f"and chunks {asked.chunks or 'auto'} and suits {planner.graph.vertices} vertices; use smaller numbers"
        )
    best = _pick(forecasts).best
    return Choice(forecasts, best, _reason_for_auto(best, forecasts, most_ranks))


def ranks_to_try(most_ranks: int, fixed_ranks: int) -> list[int]:
    """Numbers of ranks: what is fixed, times every small number and fewer and fewer large ones."""
    most = most_ranks // fixed_ranks
    factors, large = {*range(1, EVERY_NUMBER_UP_TO + 1), most}, EVERY_NUMBER_UP_TO
    while large < most:
        factors |= {large * 3 // 2, large * 2}
        large *= 2
    return [factor * fixed_ranks for factor in sorted(factors) if factor <= most]


def _keeps(plan: Plan, asked: ParallelismSpec) -> bool:
    chosen = ((asked.stages, plan.stages), (asked.ways, plan.ways), (asked.chunks, plan.chunks))
    return all(wanted in ("auto", None, number) for wanted, number in chosen)


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
        if isinstance(asked.chunks, int) and asked.has_auto:
            choices = [asked.chunks // ways] if asked.chunks % ways == 0 else []
        elif isinstance(asked.chunks, int) and (stages, ways) == (own.stages, own.ways) and stages > 1:
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


def _reason_for_auto(best: Forecast, forecasts: list[Forecast], most_ranks: int) -> str:
    """Why this one of all plans on at most so many ranks."""
    others = [forecast for forecast in forecasts if forecast is not best]
    name = _name(best)[0].upper() + _name(best)[1:]
    if not best.fits:
        return f"{reason(best, forecasts)} At most {most_ranks} ranks were allowed."
    if not others:
        return f"{name} is all that the manifest leaves open on at most {most_ranks} ranks."
    rival = min(others, key=lambda forecast: forecast.seconds)
    if rival.seconds >= best.seconds:
        behind = f"{_name(rival)} would take {_ratio(rival, best)} as long"
        return f"{name} is the quickest on at most {most_ranks} ranks; {behind}."
    if not rival.fits:
        return f"{name}: {_name(rival)} would be quicker but does not fit into the memory of a rank."
    return (
        f"{name} is exact, and on at most {most_ranks} ranks nothing gains enough on it: {_name(rival)} is "
        f"{_ratio(best, rival)} as quick."
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
