"""How good forecasts were: the summary, the table and the sentences of benchmarks/forecast.py."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from gnnpipe_trainer.bench.machine import machine_sentence
from gnnpipe_trainer.planning.choose import WORTH_BEING_STALE

WITHIN = 0.30  # worst error of an epoch's time
PICK_WITHIN = 0.10  # of the quickest plan


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    if not cases:
        return {}
    times = [abs(_error(case)) for case in cases]
    memory = [
        abs(ours / real - 1)
        for case in cases
        for ours, real in zip(case["memory"]["forecast"], case["memory"]["measured"], strict=True)
    ]
    picks = choices(cases)
    return {
        "cases": len(cases),
        "timeErrorMedian": round(statistics.median(times), 3),
        "timeErrorWorst": round(max(times), 3),
        "within30": sum(error <= WITHIN for error in times),
        "bytesExact": sum(case["bytes"]["forecast"] == case["bytes"]["measured"] for case in cases),
        "memoryErrorMedian": round(statistics.median(memory), 3),
        "memoryErrorWorst": round(max(memory), 3),
        "picks": len(picks),
        "goodPicks": sum(pick["slowerThanBest"] <= PICK_WITHIN for pick in picks),
        "choices": picks,
    }


def choices(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each graph, model, link and number of ranks with a choice: how much slower the planner's pick really is."""

    def group(case: dict[str, Any]) -> tuple[str, str, str, int]:
        return case["graph"], case["model"], case["link"], case["cut"][0] * case["cut"][1]

    found = []
    for key, members in groupby(sorted(cases, key=group), key=group):
        rivals = list(members)
        if len(rivals) > 1:
            picked, quickest = _pick(rivals), min(rivals, key=_measured)
            found.append(
                {
                    "case": list(key),
                    "picked": picked["cut"],
                    "quickest": quickest["cut"],
                    "slowerThanBest": round(_measured(picked) / _measured(quickest) - 1, 3),
                }
            )
    return found


def _pick(rivals: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """As planning.choose does: the quickest, but an exact plan where history gains too little."""
    ordered = sorted(rivals, key=lambda case: float(case["seconds"]["forecast"]))
    limit = ordered[0]["seconds"]["forecast"] / WORTH_BEING_STALE
    exact = [case for case in ordered if case["cut"][0] == 1 and case["seconds"]["forecast"] <= limit]
    return exact[0] if exact else ordered[0]


def _measured(case: dict[str, Any]) -> float:
    return float(case["seconds"]["measured"])


def _error(case: dict[str, Any]) -> float:
    return float(case["seconds"]["forecast"]) / _measured(case) - 1


def sentences(found: dict[str, Any]) -> str:
    """The bars, met or missed."""
    if not found:
        return "Nothing was measured yet."
    wrong = [
        f"{' '.join(map(str, pick['case']))} ranks: {_name(pick['picked'])} was taken, {_name(pick['quickest'])} is "
        f"quicker, the other {_percent(pick['slowerThanBest'])} slower"
        for pick in found["choices"]
        if pick["slowerThanBest"] > PICK_WITHIN
    ]
    return (
        f"- Epoch time, {found['cases']} cases: off by {_percent(found['timeErrorMedian'])} in the median (bar 15%), "
        f"{_percent(found['timeErrorWorst'])} at worst (bar 30%); {found['within30']} cases are within 30%.\n"
        f"- Bytes: exact in {found['bytesExact']} of {found['cases']}.\n"
        f"- Memory of every rank: off by {_percent(found['memoryErrorMedian'])} in the median and "
        f"{_percent(found['memoryErrorWorst'])} at worst (bar 10%).\n"
        f"- The plan that the planner takes is the quickest, or within 10% of it, in {found['goodPicks']} of "
        f"{found['picks']} choices (bar 9 of 10). Missed: {'; '.join(wrong) or 'none'}.\n\n"
        "`python benchmarks/forecast.py --page docs/planning.md`"
    )


def _name(cut: Sequence[int]) -> str:
    stages, ways, chunks = cut
    return f"{stages} x {ways} in {chunks} chunks"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def table(content: dict[str, Any]) -> str:
    lines = [
        f"{machine_sentence(content['machine'])}.",
        "",
        "| graph | model | link | stages x ways, chunks | median epoch, ms | medians of rounds "
        "| forecast | error | memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in content["cases"]:
        stages, ways, chunks = case["cut"]
        rounds = ", ".join(f"{1000 * seconds:.0f}" for seconds in case["seconds"]["medians"])
        memory = [
            ours / real - 1
            for ours, real in zip(case["memory"]["forecast"], case["memory"]["measured"], strict=True)
        ]
        lines.append(
            f"| {case['graph']} | {case['model']} | {case['link']} | {stages} x {ways}, {chunks} "
            f"| {1000 * _measured(case):.0f} | {rounds} "
            f"| {1000 * case['seconds']['forecast']:.0f} | {100 * _error(case):+.0f}% "
            f"| {100 * max(memory, key=abs):+.0f}% |"
        )
    return "\n".join(lines)
