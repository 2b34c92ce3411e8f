"""`python benchmarks/staleness.py`: what history does to training, measured; the pictures of docs/staleness.md.

Trains one model on one generated graph with each rule of history and, at every fifth epoch, computes the exact gradient
at the same weights with the same dropout. Keeps the figures in results/staleness.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from gnnpipe_api.load import parse_job
from gnnpipe_trainer.optimizer import make_optimizer
from gnnpipe_trainer.report import write_json
from gnnpipe_trainer.validation import evaluate

sys.path.insert(0, str(Path(__file__).parent))
from accuracy_run import alone
from at_once import AtOnce

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "staleness.json"
PICTURES = ROOT / "docs" / "images"

PROBE_EVERY, LAGS = 5, range(1, 17)
RULES: dict[str, dict[str, Any] | None] = {
    "exact": None,
    "previous": {"mode": "previous"},
    "ema 0.5": {"decay": 0.5},
    "ema 0.9": {},
    "frozen 20": {"mode": "frozen"},
    "shift": {"mode": "shift"},
}
COLOURS = dict(zip(RULES, ("#222222", "#e45756", "#eeca3b", "#4c78a8", "#54a24b", "#b279a2"), strict=True))

Figures = dict[str, Any]


def manifest(history: dict[str, Any] | None, given: argparse.Namespace) -> dict[str, Any]:
    stages = 1 if history is None else 2
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "staleness"},
        "spec": {
            "graph": {"source": "synthetic", "vertices": 3000, "homophily": 0.45, "featureNoise": 4.0},
            "model": {
                "kind": given.kind,
                "layers": given.layers,
                "hidden": 64,
                "dropout": given.dropout,
                "options": {"norm": "layer"} if given.kind in ("gcn", "sage") else {},
            },
            "training": {"epochs": given.epochs, "learningRate": given.learning_rate, "seed": given.seed},
            "parallelism": {"stages": stages, "chunks": given.chunks, "history": history or {}},
        },
    }


def measure(history: dict[str, Any] | None, given: argparse.Namespace) -> Figures:
    """One rule: loss, validation, drift, cosine to the exact gradient, autocorrelation of the gradient."""
    job = parse_job(manifest(history, given))
    run, twin = AtOnce.of(job, ROOT), AtOnce.of(parse_job(manifest(None, given)), ROOT)
    optimizer = make_optimizer(job.spec.training, run.engine.parameters)
    figures: Figures = {"loss": [], "validation": [], "drift": [], "cosine": [], "staleShare": None}
    gradients: list[Tensor] = []
    for epoch in range(given.epochs):
        probes = epoch % PROBE_EVERY == 0 and history is not None
        weights = (
            {name: tensor.clone() for name, tensor in run.engine.model.state_dict().items()} if probes else {}
        )
        figures["loss"].append(round(run.train_epoch(epoch), 4))
        gradients.append(flat(run.engine.parameters))
        if probes:
            figures["cosine"].append(round(cosine_to_exact(gradients[-1], twin, weights, epoch), 4))
        figures["drift"].append(drift_of(run))
        optimizer.step()
        optimizer.zero_grad()
        if epoch % PROBE_EVERY == PROBE_EVERY - 1:
            figures["validation"].append(round(evaluate(run.engine, run.engine.groups.control).val, 4))
    figures["autocorrelation"] = autocorrelation(torch.stack(gradients[given.epochs // 4 :]))
    if history is not None:
        figures["staleShare"] = round(fmean(run.edges(e).stale_share(edge_kind(run)) for e in range(8)), 4)
    return figures


def edge_kind(run: AtOnce) -> Any:
    return next(block.edge_weights for block in run.engine.model.block_list())


def cosine_to_exact(gradient: Tensor, twin: AtOnce, weights: dict[str, Tensor], epoch: int) -> float:
    twin.engine.model.load_state_dict(weights)
    twin.train_epoch(epoch)
    exact = flat(twin.engine.parameters)
    for parameter in twin.engine.parameters:
        parameter.grad = None
    return float(nn.functional.cosine_similarity(gradient, exact, dim=0))


def drift_of(run: AtOnce) -> list[float]:
    """Block by block; blocks without history are left out."""
    pairs = [g.history.take_drift() for g in run.engine.stage.gathers if g.history is not None]
    return [round((d / m) ** 0.5, 4) for d, m in pairs if m > 0]


def flat(parameters: Sequence[nn.Parameter]) -> Tensor:
    return torch.cat([p.grad.flatten().clone() for p in parameters if p.grad is not None])


def autocorrelation(gradients: Tensor) -> list[float]:
    """Over LAGS, of [epochs, parameters]."""
    found = []
    for lag in LAGS:
        first, second = gradients[:-lag], gradients[lag:]
        found.append(round(float((first * second).sum() / (first.norm() * second.norm())), 3))
    return found


def draw(name: str, results: dict[str, Figures], path: Path) -> None:
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    charts = figure.subplots(2, 3).flatten()
    for rule, figures in results.items():
        colour = COLOURS[rule]
        epochs = range(1, len(figures["loss"]) + 1)
        probed = range(1, len(figures["loss"]) + 1, PROBE_EVERY)
        charts[0].plot(epochs, figures["loss"], color=colour, linewidth=1.1, label=rule)
        charts[1].plot(probed, [100 * v for v in figures["validation"]], color=colour, linewidth=1.1)
        charts[2].plot(
            LAGS, figures["autocorrelation"], color=colour, linewidth=1.1, marker=".", markersize=4
        )
        if figures["cosine"]:
            charts[3].plot(probed, figures["cosine"], color=colour, linewidth=1.1)
            charts[4].plot(
                epochs, [fmean(blocks) for blocks in figures["drift"]], color=colour, linewidth=1.1
            )
            last = [fmean(d[b] for d in figures["drift"][-40:]) for b in range(len(figures["drift"][0]))]
            charts[5].plot(range(1, len(last) + 1), last, color=colour, linewidth=1.1, marker=".")
    titles = (
        "training loss",
        "validation accuracy, % (exact evaluation)",
        "autocorrelation of the gradient, by lag in epochs",
        "cosine to the exact gradient",
        "drift of history, mean over blocks",
        "drift in the last 40 epochs, by block",
    )
    for chart, title in zip(charts, titles, strict=True):
        chart.set_title(title, fontsize=9, loc="left")
        chart.tick_params(labelsize=8, length=0)
        chart.spines[["top", "right"]].set_visible(False)
        chart.grid(axis="y", color="#eeeeee")
    charts[5].xaxis.set_major_locator(MaxNLocator(integer=True))
    charts[2].axhline(0, color="#999999", linewidth=0.8)
    charts[0].legend(frameon=False, fontsize=8, ncols=2)
    figure.suptitle(name, fontsize=10, x=0.01, ha="left")
    figure.savefig(path, dpi=120, metadata={"Software": None})


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    kept: dict[str, dict[str, Figures]] = (
        json.loads(given.results.read_text()) if given.results.exists() else {}
    )
    name = (
        f"{given.kind}, {given.layers} layers, {given.chunks} chunks, learning rate {given.learning_rate:g}, "
        f"dropout {given.dropout:g}, seed {given.seed}"
    )
    results = kept.setdefault(name, {})
    with alone():
        for rule in given.rule or RULES:
            if rule not in results and not given.draw:
                results[rule] = measure(RULES[rule], given)
                write_json(given.results, kept)
    draw(name, {rule: results[rule] for rule in RULES if rule in results}, given.picture)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measures what history does to training.")
    parser.add_argument("--kind", default="gcn")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=160)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rule", action="append", choices=list(RULES), help="only this rule; may be repeated"
    )
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw what is kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURES / "staleness.png")
    return parser


if __name__ == "__main__":
    sys.exit(main())
