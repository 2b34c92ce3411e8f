"""The cells of the accuracy grid: graph x model x mode x seed, each a manifest that `gnnpipe run` takes too."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Fields = dict[str, Any]

EPOCHS, PATIENCE = 400, 60  # to the plateau: no better validation for 60 epochs
# Epochs and patience of what learns slowly: gcn on Squirrel, eight normalised layers, which start slowly, and all that
# the generated graph's low learning rates make slow.
LONGER_ON = {"generated": (1000, 60)}
LONGER = {
    ("squirrel", "gcn-4"): (3000, 1000),
    ("squirrel", "gcn-8"): (3000, 1000),
    ("squirrel", "gcn-16"): (1000, 300),
    ("squirrel", "gcn-32"): (1000, 300),
    **{("cora", f"gcn-{layers}"): (400, 100) for layers in (8, 16, 32)},
    **{("generated", f"gcn-{layers}"): (1500, 120) for layers in (8, 16, 32)},
    ("cora", "gcnii-64"): (400, 100),
}
EVALUATE_EVERY = 2

GRAPHS: dict[str, Fields] = {
    "cora": {"source": "npz", "path": "cora.npz"},
    "squirrel": {"source": "npz", "path": "squirrel.npz"},
    "generated": {"source": "synthetic", "vertices": 2000, "homophily": 0.55, "featureNoise": 3.0},
    # benchmarks/public_graphs.py puts these two there
    "citeseer": {"source": "planetoid", "name": "CiteSeer", "root": "planetoid"},
    "pubmed": {"source": "planetoid", "name": "PubMed", "root": "planetoid"},
}
LIKE = {"citeseer": "cora", "pubmed": "cora"}  # citation graphs too: trained with the same settings
SPLITS = {"squirrel": 10}  # a seed takes the split of its number

MODELS: dict[str, Fields] = {
    "gcn-4": {"kind": "gcn", "layers": 4, "options": {"norm": "layer"}},
    "gcn-8": {"kind": "gcn", "layers": 8, "options": {"norm": "layer"}},
    "gcn-16": {"kind": "gcn", "layers": 16, "options": {"norm": "layer"}},
    "gcn-32": {"kind": "gcn", "layers": 32, "options": {"norm": "layer"}},
    "gcn-2-plain": {"kind": "gcn", "layers": 2},
    "gcn-4-plain": {"kind": "gcn", "layers": 4},
    "gcn-8-plain": {"kind": "gcn", "layers": 8},
    "gin-4": {"kind": "gin", "layers": 4, "options": {"norm": "layer"}},
    "gat-4": {"kind": "gat", "layers": 4, "options": {"norm": "layer", "heads": 4}},
    "sage-4": {"kind": "sage", "layers": 4},
    "sage-8": {"kind": "sage", "layers": 8},
    "sage-16": {"kind": "sage", "layers": 16},
    "sage-32": {"kind": "sage", "layers": 32},
    "gcnii-4": {"kind": "gcnii", "layers": 4},
    "gcnii-8": {"kind": "gcnii", "layers": 8},
    "gcnii-16": {"kind": "gcnii", "layers": 16},
    "gcnii-32": {"kind": "gcnii", "layers": 32},
    "gcnii-64": {"kind": "gcnii", "layers": 64, "hidden": 64},  # as GCNII's authors have it on Cora
    "resgcn-4": {"kind": "resgcn", "layers": 4},
    "resgcn-8": {"kind": "resgcn", "layers": 8},
    "resgcn-16": {"kind": "resgcn", "layers": 16},
    "resgcn-32": {"kind": "resgcn", "layers": 32},
}
WIDTH = {
    ("squirrel", kind): 32 for kind in ("gcn", "sage", "gin", "gat", "gcnii")
}  # 2,089 features make it dear
USUAL_WIDTH = 64

# Learning rate, dropout and weight decay, as exact training wants them; every mode of a cell trains with the same.
# accuracy_settings.py chose them, but those of gcn and resgcn on Squirrel, which docs/accuracy.md tells of.
Settings = tuple[float, float, float]
SETTINGS: dict[str, dict[str, Settings]] = {
    "cora": {
        "gcn-4": (0.01, 0.5, 5e-4),
        "gcn-8": (0.003, 0.2, 5e-4),
        "sage-4": (0.001, 0.2, 5e-4),
        "resgcn-8": (0.001, 0.7, 5e-4),
        "resgcn-32": (0.001, 0.5, 5e-4),
        "gcnii-16": (0.003, 0.7, 5e-4),
        "gcnii-32": (0.01, 0.7, 5e-4),
        "gcnii-64": (0.01, 0.6, 5e-4),  # GCNII's authors'
        "gat-4": (0.003, 0.5, 5e-4),
        "gin-4": (0.001, 0.5, 5e-4),
    },
    "squirrel": {
        "gcn-4": (0.01, 0.2, 0.0),
        "gcn-8": (0.005, 0.2, 0.0),
        "sage-4": (0.005, 0.5, 0.0),
        "resgcn-8": (0.001, 0.0, 1e-3),
        "resgcn-32": (0.0005, 0.0, 1e-3),
        "gcnii-16": (0.01, 0.5, 0.0),
        "gcnii-32": (0.01, 0.5, 0.0),
        "gat-4": (0.001, 0.0, 0.0),
        "gin-4": (0.001, 0.2, 0.0),
    },
    "generated": {
        "gcn-4": (0.001, 0.5, 0.0),
        "gcn-8": (0.001, 0.2, 0.0),
        "sage-4": (0.01, 0.7, 5e-4),
        "resgcn-8": (0.001, 0.5, 0.0),
        "resgcn-32": (0.003, 0.3, 0.0),
        "gcnii-16": (0.003, 0.2, 0.0),
        "gcnii-32": (0.003, 0.2, 0.0),
        "gat-4": (0.001, 0.3, 0.0),
        "gin-4": (0.001, 0.2, 0.0),
    },
}
BLOCK_WEIGHT_DECAY = {("cora", "gcnii"): 0.01}  # GCNII's authors'

PIPELINE: Fields = {"stages": 2, "chunks": 16}
HYBRID: Fields = {"stages": 2, "ways": 2, "chunks": 16}
MODES: dict[str, Fields] = {
    "exact": {"stages": 1, "chunks": 1},
    # Exact too, from the same weights, but dropout falls on other vertices: how far chance alone goes.
    "exact-again": {**PIPELINE, "history": {"warmupEpochs": 10_000}},
    "graph": {"stages": 1, "ways": 2},
    "pipeline": PIPELINE,
    "hybrid": HYBRID,
    "chunks-8": {"stages": 2, "chunks": 8},
    "chunks-32": {"stages": 2, "chunks": 32},
    "stages-4": {"stages": 4, "chunks": 16},
    "stages-4-chunks-8": {"stages": 4, "chunks": 8},
    "stages-4-chunks-32": {"stages": 4, "chunks": 32},
    # one technique off, or another in its place
    "drop": {**PIPELINE, "history": {"gradients": "drop"}},
    "last": {**PIPELINE, "history": {"gradients": "last"}},
    "average": {**PIPELINE, "history": {"gradients": "average"}},
    "hybrid-drop": {**HYBRID, "history": {"gradients": "drop"}},
    "hybrid-average": {**HYBRID, "history": {"gradients": "average"}},
    "no-correction": {**PIPELINE, "history": {"correction": "none"}},
    "correction": {**PIPELINE, "history": {"correction": "mean"}},
    "drop-no-correction": {**PIPELINE, "history": {"correction": "none", "gradients": "drop"}},
    "last-no-correction": {**PIPELINE, "history": {"correction": "none", "gradients": "last"}},
    "hybrid-correction": {**HYBRID, "history": {"correction": "mean"}},
    "hybrid-no-correction": {**HYBRID, "history": {"correction": "none"}},
    "warm-20": {**PIPELINE, "history": {"warmupEpochs": 20}},
    "previous": {**PIPELINE, "history": {"mode": "previous"}},
    "frozen": {**PIPELINE, "history": {"mode": "frozen"}},
    "shift": {**PIPELINE, "history": {"mode": "shift"}},
    "ema-0.5": {**PIPELINE, "history": {"decay": 0.5}},
    "ema-0.97": {**PIPELINE, "history": {"decay": 0.97}},
    "no-shuffle": {**PIPELINE, "shuffleChunks": False},
    "zeros": {**PIPELINE, "history": {"warmup": "zeros"}},
    "factor-2": {**PIPELINE, "freshGradientFactor": 2.0},
    "paper": {
        **PIPELINE,
        "history": {"mode": "frozen", "refreshEvery": 23, "warmup": "zeros"},
        "freshGradientFactor": 2.0,
    },
    "previous-32": {"stages": 2, "chunks": 32, "history": {"mode": "previous"}},
    # other weights to evaluate, see TRAINING_OF_MODE
    "exact-averaged": {"stages": 1, "chunks": 1},
    "averaged": PIPELINE,
    "no-averaging": PIPELINE,
    "hybrid-no-averaging": HYBRID,
    "average-no-averaging": {**PIPELINE, "history": {"gradients": "average"}},
}
# Fields of spec.training that a mode has of its own. The others' manifests have none, or what is kept would not count.
TRAINING_OF_MODE: dict[str, Fields] = {
    "exact-averaged": {"averaging": {"mode": "ema"}},
    "averaged": {"averaging": {"mode": "ema"}},
    "no-averaging": {"averaging": {"mode": "none"}},
    "hybrid-no-averaging": {"averaging": {"mode": "none"}},
    "average-no-averaging": {"averaging": {"mode": "none"}},
}

# Of every model alike, whether it missed a bar or not. Cora's runs take seconds, and there few epochs decide.
SEEDS: dict[str, dict[str, int]] = {
    "cora": {"exact": 60, "pipeline": 60, "hybrid": 5},
    "generated": {"exact": 20, "pipeline": 20, "hybrid": 5},
    "squirrel": {"exact": 10, "pipeline": 10, "hybrid": 5},
}
MOST_SEEDS = max(number for modes in SEEDS.values() for number in modes.values())
MUST_GRAPHS = ("cora", "generated", "squirrel")
MUST_MODELS = ("gcn-4", "gcn-8", "sage-4", "resgcn-8", "gcnii-16", "gcnii-32", "resgcn-32")
WHOLE_SEEDS = 5
WHOLE_MODELS = tuple(
    f"{kind}-{layers}" for kind in ("gcn", "sage", "gcnii", "resgcn") for layers in (4, 8, 16, 32)
)
WHOLE_MODES = (
    "exact",
    "graph",
    "chunks-8",
    "pipeline",
    "chunks-32",
    "stages-4-chunks-8",
    "stages-4",
    "stages-4-chunks-32",
    "hybrid",
)
ABLATION_GRAPHS = ("generated",)
ABLATION_MODELS = ("gcn-4", "gcnii-16", "resgcn-8")
ABLATION_MODES = (
    "last",
    "previous",
    "frozen",
    "shift",
    "ema-0.5",
    "ema-0.97",
    "no-shuffle",
    "zeros",
    "factor-2",
    "paper",
)


def settings(graph: str, model: str) -> Settings:
    """What was chosen for a model of this kind; if not for this depth, for the nearest one."""
    chosen, wanted = SETTINGS[graph], MODELS[model]

    def distance(other: str) -> tuple[bool, int]:
        return other != model, abs(MODELS[other]["layers"] - wanted["layers"])

    return chosen[min((other for other in chosen if MODELS[other]["kind"] == wanted["kind"]), key=distance)]


@dataclass(frozen=True)
class Cell:
    graph: str
    model: str
    mode: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.graph}/{self.model}/{self.mode}/{self.seed}"

    @property
    def like(self) -> str:
        """The graph whose settings it is trained with."""
        return LIKE.get(self.graph, self.graph)

    @property
    def evaluate_every(self) -> int:
        """On Cora each epoch: there 95% is reached within some ten; 64 layers as examples/cora.yaml has it."""
        return 1 if self.like == "cora" and self.model != "gcnii-64" else EVALUATE_EVERY

    @staticmethod
    def of(name: str) -> Cell:
        """From its name. Raises ValueError that says what is known."""
        parts = name.split("/")
        if len(parts) != 4 or not parts[3].isdigit():
            raise ValueError(f"{name!r} is no cell; name one as graph/model/mode/seed, see --list")
        for part, known in zip(parts, (GRAPHS, MODELS, MODES), strict=False):
            if part not in known:
                raise ValueError(f"{part!r} in {name!r} is not known; use one of {', '.join(known)}")
        return Cell(*parts[:3], int(parts[3]))

    def manifest(self, data: Path) -> Fields:
        """`data` is the folder of the public graphs."""
        graph, model = dict(GRAPHS[self.graph]), MODELS[self.model]
        for place in ("path", "root"):
            if place in graph:
                graph[place] = str(data / graph[place])
        if self.model == "gcnii-64":
            graph["normalizeFeatures"] = True
        if self.graph in SPLITS:
            graph["split"] = self.seed % SPLITS[self.graph]
        kind = (self.like, model["kind"])
        usual = LONGER_ON.get(self.like, (EPOCHS, PATIENCE))
        epochs, patience = LONGER.get((self.like, self.model), usual)
        learning_rate, dropout, weight_decay = settings(self.like, self.model)
        training = {
            "epochs": epochs,
            "evaluateEvery": self.evaluate_every,
            "earlyStopping": {"patience": patience},
            "seed": self.seed,
            "device": "cpu",
            "learningRate": learning_rate,
            **({"weightDecay": weight_decay} if weight_decay else {}),
            **({"blockWeightDecay": BLOCK_WEIGHT_DECAY[kind]} if kind in BLOCK_WEIGHT_DECAY else {}),
            **TRAINING_OF_MODE.get(self.mode, {}),
        }
        made = {
            "apiVersion": "gnnpipe.io/v1alpha1",
            "kind": "GNNPipeJob",
            "metadata": {"name": self.name.replace("/", "-").replace(".", "")},
            "spec": {
                "graph": graph,
                "model": {
                    "hidden": WIDTH.get(kind, USUAL_WIDTH),
                    "dropout": dropout,
                    **model,
                },
                "training": training,
                "parallelism": MODES[self.mode],
            },
        }
        return deepcopy(made)  # whoever changes a manifest changes that one only


def bars(seeds: int) -> Iterator[Cell]:
    """Cells with a figure to be reached: of the paper on Squirrel, of GCNII's authors on Cora (the pipeline's only:
    a run of 64 layers costs as much as ten others)."""
    for seed in range(seeds):
        yield Cell("cora", "gcnii-64", "pipeline", seed)
        for model in ("gcnii-32", "resgcn-32"):
            for mode in ("exact", "pipeline"):
                yield Cell("squirrel", model, mode, seed)


def must_run(most: int = MOST_SEEDS) -> Iterator[Cell]:
    """What docs/accuracy.md shows, the most telling first: exact and pipeline, then hybrid, then more seeds."""
    for some in (range(3), range(3, 5), range(5, 10), range(10, MOST_SEEDS)):
        for modes in (("exact", "pipeline"), ("hybrid",)):
            for seed in some:
                for model in MUST_MODELS:
                    for graph in MUST_GRAPHS:
                        for mode in modes:
                            if seed < min(most, SEEDS[graph][mode]):
                                yield Cell(graph, model, mode, seed)


def ablation(seeds: int) -> Iterator[Cell]:
    for seed in range(seeds):
        for graph in ABLATION_GRAPHS:
            for model in ABLATION_MODELS:
                for mode in ABLATION_MODES:
                    yield Cell(graph, model, mode, seed)


def whole(seeds: int) -> Iterator[Cell]:
    """Every graph and depth, each way to train; a seed of all of it before the next."""
    for seed in range(min(seeds, WHOLE_SEEDS)):
        for graph in GRAPHS:
            for model in WHOLE_MODELS:
                for mode in WHOLE_MODES:
                    yield Cell(graph, model, mode, seed)
