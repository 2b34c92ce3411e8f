"""Every mistake that a manifest can hold, with the exact sentence a person reads about it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from gnnpipe_api.load import InvalidJob, parse_job

CLAIM = {"persistentVolumeClaim": {"claimName": "graphs"}}
NPZ = {"spec.graph": {"source": "npz", "path": "/data/g.npz"}}
GANG = "spec.runPolicy.scheduling"
RATE = "spec.training.learningRateSchedule"
TEMPLATE = "spec.worker.template"
NAME_FORM = "must begin with a letter and hold only a-z, 0-9 and dashes between them"
FACTORY_OR_BUILT_IN = (
    "is neither a built-in model (gcn, sage, gin, gat, gcnii, resgcn) nor of the form module:factory"
)


def trainer(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "trainer", **fields}]}


# What is changed in the valid manifest of conftest.py -> the one problem, as it is shown.
BAD: list[tuple[dict[str, Any], str]] = [
    # Fields that are missing, unknown or in the wrong place.
    ({"apiVersion": ...}, "apiVersion: required field is missing."),
    ({"apiVersion": "gnnpipe.io/v1"}, "apiVersion: must be gnnpipe.io/v1alpha1, got 'gnnpipe.io/v1'."),
    ({"kind": "Job"}, "kind: must be GNNPipeJob, got 'Job'."),
    ({"spec": ...}, "spec: required field is missing."),
    ({"spec.graph": ...}, "spec.graph: required field is missing."),
    ({"spec.model": None}, "spec.model: required field is missing."),
    ({"spec.model.layers": ...}, "spec.model.layers: required field is missing."),
    ({"spec.paralelism": {}}, "spec.paralelism: unknown field; did you mean parallelism?"),
    (
        {"spec.training.learning_rate": 0.1},
        "spec.training.learning_rate: unknown field; did you mean learningRate?",
    ),
    ({"spec.epochs": 5}, "spec.epochs: unknown field; did you mean spec.training.epochs?"),
    ({"training": {}}, "training: unknown field; did you mean spec.training?"),
    (
        {"spec.parallelism.history.xyz": 1},
        "spec.parallelism.history.xyz: unknown field; "
        "spec.parallelism.history takes mode, decay, refreshEvery, warmup, warmupEpochs, correction, gradients.",
    ),
    # The job's name.
    ({"metadata.name": ...}, "metadata.name: required field is missing."),
    (
        {"metadata.name": "Squirrel"},
        f"metadata.name: {NAME_FORM}, got 'Squirrel'.",
    ),
    (
        {"metadata.name": "7-bridges"},
        f"metadata.name: {NAME_FORM}, got '7-bridges'.",
    ),
    (
        {"metadata.name": "a" * 52},
        "metadata.name: must be at most 51 characters long so that pod names fit into 63, but has 52.",
    ),
    # Values of the wrong type or out of range.
    ({"spec.model.layers": "abc"}, "spec.model.layers: must be a whole number, got 'abc'."),
    ({"spec.model.layers": 2.5}, "spec.model.layers: must be a whole number, got 2.5."),
    ({"spec.model.layers": True}, "spec.model.layers: must be a whole number, got true."),
    ({"spec.model.layers": 0}, "spec.model.layers: must be at least 1, got 0."),
    ({"spec.model.dropout": 1}, "spec.model.dropout: must be less than 1, got 1."),
    ({"spec.training.learningRate": "fast"}, "spec.training.learningRate: must be a number, got 'fast'."),
    ({"spec.training.learningRate": 0}, "spec.training.learningRate: must be greater than 0, got 0."),
    (
        {"spec.training.learningRate": float("inf")},
        "spec.training.learningRate: must be a finite number, got inf.",
    ),
    (
        {"spec.parallelism.shuffleChunks": "no"},
        "spec.parallelism.shuffleChunks: must be true or false, got 'no'.",
    ),
    ({"spec.training": [1, 2]}, "spec.training: must be an object with fields, got a list."),
    ({"spec.model.options": "alpha"}, "spec.model.options: must be an object with fields, got 'alpha'."),
    (
        {"spec.model.options": {"since": date(2020, 1, 1)}},
        "spec.model.options: 2020-01-01 is neither text nor a number; put it in quotes.",
    ),
    (
        {TEMPLATE: {"metadata": {"labels": {1: "x"}}}},
        "spec.worker.template: field names must be text; put 1 in quotes.",
    ),
    ({"spec.training": {True: 1}}, "spec.training: field names must be text; put True in quotes."),
    ({"metadata.labels": {3: "x"}}, "metadata.labels: field names must be text; put 3 in quotes."),
    ({"spec.model.layers": 10**9}, "spec.model.layers: must be at most 10000, got 1000000000."),
    ({"spec.graph.homophily": 1.5}, "spec.graph.homophily: must be at most 1, got 1.5."),
    ({"metadata.labels": {"team": 7}}, "metadata.labels.team: must be text, got 7."),
    (
        {"spec.parallelism.history.mode": "emma"},
        "spec.parallelism.history.mode: must be one of ema, frozen, previous, shift, got 'emma'; "
        "did you mean ema?",
    ),
    (
        {"spec.training.precision": "int4"},
        "spec.training.precision: must be one of fp32, bf16, fp64, got 'int4'.",
    ),
    (
        {"spec.parallelism.stages": "many"},
        "spec.parallelism.stages: must be a whole number of at least 1, or \"auto\"; got 'many'.",
    ),
    (
        {"spec.parallelism.chunks": 0},
        'spec.parallelism.chunks: must be a whole number of at least 1, or "auto"; got 0.',
    ),
    # The graph.
    ({"spec.graph.source": "npz"}, "spec.graph.path: source npz needs the path of the .npz file."),
    (
        {"spec.graph": {"source": "ogb", "root": "data"}},
        "spec.graph.name: source ogb needs the name of the data set.",
    ),
    (
        {"spec.graph": {"source": "planetoid", "name": "Cora"}},
        "spec.graph.root: source planetoid needs the folder that holds the data set.",
    ),
    (
        {"spec.graph.path": "g.npz"},
        "spec.graph.path: only source npz takes a path, but spec.graph.source is synthetic.",
    ),
    (
        {**NPZ, "spec.graph.name": "Cora"},
        "spec.graph.name: only planetoid, ogb and pyg take a name, but spec.graph.source is npz.",
    ),
    (
        {**NPZ, "spec.graph.vertices": 100},
        "spec.graph.vertices: only a synthetic graph takes this, but spec.graph.source is npz.",
    ),
    (
        {"spec.graph.volume": {**CLAIM, "mountPath": "/data"}},
        "spec.graph.volume: a synthetic graph is generated and needs no volume.",
    ),
    (
        {"spec.graph.vertices": 30, "spec.graph.classes": 40},
        "spec.graph.classes: 40 classes need at least 40 vertices, but spec.graph.vertices is 30.",
    ),
    (
        {"spec.graph.vertices": 20},
        "spec.graph.averageDegree: must be less than the 20 of spec.graph.vertices, got 20.",
    ),
    (
        {"spec.graph.trainShare": 0},
        "spec.graph.trainShare: must be greater than 0: nothing can be learnt from no vertices.",
    ),
    (
        {"spec.graph.trainShare": 0.5, "spec.graph.valShare": 0.5},
        "spec.graph.valShare: trainShare 0.5 and valShare 0.5 leave nothing to test on; "
        "keep their sum below 1.",
    ),
    # Volumes.
    ({**NPZ, "spec.graph.volume": CLAIM}, "spec.graph.volume.mountPath: required field is missing."),
    (
        {**NPZ, "spec.graph.volume": {"mountPath": "/data"}},
        "spec.graph.volume: needs exactly one volume source such as persistentVolumeClaim, but has none.",
    ),
    (
        {"spec.checkpoint.volume": {**CLAIM, "emptyDir": {}}},
        "spec.checkpoint.volume: needs exactly one volume source such as persistentVolumeClaim, "
        "but has persistentVolumeClaim and emptyDir.",
    ),
    (
        {"spec.checkpoint.volume": {"persistentVolumeclaim": {}}},
        "spec.checkpoint.volume.persistentVolumeclaim: unknown field; did you mean persistentVolumeClaim?",
    ),
    (
        {"spec.checkpoint.volume": {**CLAIM, "mountPath": "/out"}},
        "spec.checkpoint.volume.mountPath: leave it out: checkpoints are always mounted at /gnnpipe/out.",
    ),
    ({"spec.checkpoint.volume": {"nfs": "x"}}, "spec.checkpoint.volume.nfs: must be an object with fields."),
    (
        {**NPZ, "spec.graph.volume": {**CLAIM, "mountPath": "data"}},
        "spec.graph.volume.mountPath: must be an absolute path such as /data, got 'data'.",
    ),
    (
        {
            "spec.graph": {"source": "npz", "path": "/gnnpipe/out/g.npz"},
            "spec.graph.volume": {**CLAIM, "mountPath": "/gnnpipe/out"},
        },
        "spec.graph.volume.mountPath: /gnnpipe/out collides with /gnnpipe/out, which GNNPipe mounts.",
    ),
    (
        {**NPZ, "spec.graph.volume": {**CLAIM, "mountPath": "/mnt"}},
        "spec.graph.path: /data/g.npz is not inside the volume, which is mounted at /mnt.",
    ),
    # Model and training.
    ({"spec.model.kind": "gcnn"}, f"spec.model.kind: 'gcnn' {FACTORY_OR_BUILT_IN}; did you mean gcn?"),
    ({"spec.model.kind": "my_model"}, f"spec.model.kind: 'my_model' {FACTORY_OR_BUILT_IN}."),
    (
        {"spec.model.code": {"configMap": "mine"}},
        "spec.model.code: only a module:factory model takes code, but spec.model.kind is gcnii.",
    ),
    (
        {"spec.training.earlyStopping": {"patience": 5}},
        "spec.training.earlyStopping.patience: must be at least spec.training.evaluateEvery, which is 10, "
        "got 5.",
    ),
    (
        {"spec.training.momentum": 0.9},
        "spec.training.momentum: only sgd takes momentum, but spec.training.optimizer is adam.",
    ),
    (
        {f"{RATE}.mode": "linear"},
        f"{RATE}.mode: must be one of constant, cosine, step, got 'linear'.",
    ),
    ({f"{RATE}.warmupEpochs": -1}, f"{RATE}.warmupEpochs: must be at least 0, got -1."),
    (
        {f"{RATE}.warmupEpochs": 200},
        f"{RATE}.warmupEpochs: must be less than spec.training.epochs, which is 200, got 200.",
    ),
    ({RATE: {"mode": "cosine", "floor": 1}}, f"{RATE}.floor: must be less than 1, got 1."),
    ({RATE: {"mode": "step", "every": 0}}, f"{RATE}.every: must be at least 1, got 0."),
    ({RATE: {"mode": "step", "factor": 0}}, f"{RATE}.factor: must be greater than 0, got 0."),
    ({RATE: {"mode": "step", "factor": 1}}, f"{RATE}.factor: must be less than 1, got 1."),
    ({f"{RATE}.floor": 0.1}, f"{RATE}.floor: only mode cosine takes this, but {RATE}.mode is constant."),
    (
        {RATE: {"mode": "step", "floor": 0.1}},
        f"{RATE}.floor: only mode cosine takes this, but {RATE}.mode is step.",
    ),
    (
        {RATE: {"mode": "cosine", "every": 50}},
        f"{RATE}.every: only mode step takes this, but {RATE}.mode is cosine.",
    ),
    (
        {f"{RATE}.factor": 0.1},
        f"{RATE}.factor: only mode step takes this, but {RATE}.mode is constant.",
    ),
    (
        {"spec.training.averaging": {"mode": "mean"}},
        "spec.training.averaging.mode: must be one of auto, none, ema, tail, got 'mean'.",
    ),
    (
        {"spec.training.averaging.decay": 1},
        "spec.training.averaging.decay: must be less than 1, got 1.",
    ),
    (
        {"spec.training.averaging": {"mode": "tail", "decay": 0.7}},
        "spec.training.averaging.decay: only mode ema takes this, but spec.training.averaging.mode is tail.",
    ),
    # How layers and graph are cut.
    (
        {"spec.parallelism.stages": 4, "spec.model.layers": 2},
        "spec.parallelism.stages: 4 stages need at least 4 layers, but spec.model.layers is 2; "
        "use fewer stages or more layers.",
    ),
    (
        {"spec.parallelism": {"ways": 3, "chunks": 16}},
        "spec.parallelism.chunks: 3 ways cannot share 16 chunks evenly; use 15 or 18 chunks.",
    ),
    (
        {"spec.parallelism": {"ways": 4, "chunks": 2}},
        "spec.parallelism.chunks: 4 ways need at least 4 chunks, got 2; use more chunks or fewer ways.",
    ),
    (
        {"spec.parallelism": {"stages": "auto", "ways": 4, "maxRanks": 2}},
        "spec.parallelism.maxRanks: stages auto and ways 4 need at least 4 ranks, got 2; "
        "use fewer stages or ways, or raise it.",
    ),
    (
        {"spec.parallelism": {"stages": 2, "ways": 2, "maxRanks": 3}},
        "spec.parallelism.maxRanks: stages 2 and ways 2 need at least 4 ranks, got 3; "
        "use fewer stages or ways, or raise it.",
    ),
    ({"spec.parallelism.maxRanks": 0}, "spec.parallelism.maxRanks: must be at least 1, got 0."),
    (
        {"spec.parallelism.chunks": 6000},
        "spec.parallelism.chunks: 6000 chunks need at least 6000 vertices, but spec.graph.vertices is 5000.",
    ),
    (
        {"spec.parallelism.history": {"mode": "frozen", "refreshEvery": 0}},
        "spec.parallelism.history.refreshEvery: must be at least 1, got 0.",
    ),
    (
        {"spec.parallelism.history.decay": 1.0},
        "spec.parallelism.history.decay: must be less than 1, got 1.0.",
    ),
    (
        {"spec.parallelism.history.warmupEpochs": -1},
        "spec.parallelism.history.warmupEpochs: must be at least 0, got -1.",
    ),
    (
        {"spec.parallelism.history": {"mode": "previous", "decay": 0.5}},
        "spec.parallelism.history.decay: only mode ema takes this, "
        "but spec.parallelism.history.mode is previous.",
    ),
    (
        {"spec.parallelism.freshGradientFactor": 3},
        "spec.parallelism.freshGradientFactor: must be at most 2, got 3.",
    ),
    (
        {"spec.parallelism.history": {"mode": "previous", "correction": "mean"}},
        "spec.parallelism.history.correction: only modes ema and frozen take mean, "
        "but spec.parallelism.history.mode is previous; mode shift alone is previous with that correction.",
    ),
    (
        {"spec.parallelism.freshGradientFactor": 2, "spec.parallelism.history.gradients": "last"},
        "spec.parallelism.freshGradientFactor: makes up for gradients that are dropped, but "
        "spec.parallelism.history.gradients is last; use 1, or drop.",
    ),
    (
        {"spec.parallelism.freshGradientFactor": 2, "spec.parallelism.history.gradients": "average"},
        "spec.parallelism.freshGradientFactor: makes up for gradients that are dropped, but "
        "spec.parallelism.history.gradients is average; use 1, or drop.",
    ),
    # Pods.
    (
        {"spec.worker.resources.limits": {"nvidia.com/gpu": 2}},
        "spec.worker.resources.limits.nvidia.com/gpu: leave it out: each pod gets one GPU per way, "
        "so set spec.parallelism.ways.",
    ),
    (
        {"spec.worker.resources.requests": {"cpu": 0.5}},
        "spec.worker.resources.requests.cpu: must be a quantity in quotes or a whole number, "
        "such as '500m' or 2; got 0.5.",
    ),
    (
        {TEMPLATE: {"containers": []}},
        "spec.worker.template.containers: unknown field; a pod template has metadata and spec.",
    ),
    (
        {TEMPLATE: {"spec": {"restartPolicy": "Always"}}},
        "spec.worker.template.spec.restartPolicy: leave it out: the operator sets it.",
    ),
    (
        {TEMPLATE: {"metadata": {"labels": {"gnnpipe.io/job": "x"}}}},
        "spec.worker.template.metadata.labels.gnnpipe.io/job: names under gnnpipe.io/ are reserved.",
    ),
    (
        {TEMPLATE: {"spec": {"containers": [{"image": "x"}]}}},
        "spec.worker.template.spec.containers[0]: a container needs a name; "
        "the one that trains is called trainer.",
    ),
    (
        {TEMPLATE: {"spec": trainer(command=["sh"])}},
        "spec.worker.template.spec.containers[0].command: leave it out: the operator sets it "
        "for container trainer.",
    ),
    (
        {TEMPLATE: {"spec": trainer(env=[{"name": "A"}, {"name": "GNNPIPE_STAGE", "value": "1"}])}},
        "spec.worker.template.spec.containers[0].env[1]: GNNPIPE_STAGE is reserved; "
        "names may not begin with GNNPIPE_.",
    ),
    (
        {TEMPLATE: {"spec": trainer(volumeMounts=[{"name": "a", "mountPath": "/dev/shm"}])}},
        "spec.worker.template.spec.containers[0].volumeMounts[0].mountPath: "
        "/dev/shm collides with /dev/shm, which GNNPipe mounts.",
    ),
    # The run policy.
    ({"spec.runPolicy.backoffLimit": -1}, "spec.runPolicy.backoffLimit: must be at least 0, got -1."),
    (
        {"spec.runPolicy": {"activeDeadlineSeconds": 60, "preRunningDeadlineSeconds": 90}},
        "spec.runPolicy.preRunningDeadlineSeconds: 90 can never pass, "
        "since spec.runPolicy.activeDeadlineSeconds is 60.",
    ),
    (
        {f"{GANG}.queue": "team"},
        "spec.runPolicy.scheduling.queue: only gangs volcano and kueue have queues, "
        "but spec.runPolicy.scheduling.gang is none.",
    ),
    (
        {f"{GANG}.gang": "kueue"},
        "spec.runPolicy.scheduling.queue: gang kueue needs the name of a LocalQueue.",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_a_mistake_is_told_in_one_sentence(
    changes: dict[str, Any], sentence: str, manifest_with: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    with pytest.raises(InvalidJob) as refused:
        parse_job(manifest_with(changes))
    assert [str(problem) for problem in refused.value.problems] == [sentence]


def test_all_mistakes_are_told_at_once(manifest_with: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    bad = manifest_with(
        {
            "spec.model.kind": ...,
            "spec.training.epochs": "many",
            "spec.paralelism": {},
            "spec.parallelism": {"stages": 9, "ways": 3, "chunks": 4},
        }
    )
    with pytest.raises(InvalidJob) as refused:
        parse_job(bad)
    assert [problem.path for problem in refused.value.problems] == [
        "spec.model.kind",
        "spec.training.epochs",
        "spec.paralelism",
        "spec.parallelism.stages",
        "spec.parallelism.chunks",
    ]


def test_a_rule_is_silent_about_a_field_that_is_wrong_by_itself(
    manifest_with: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    with pytest.raises(InvalidJob) as refused:
        parse_job(manifest_with({"spec.model.layers": -1, "spec.parallelism.stages": 4}))
    assert [problem.path for problem in refused.value.problems] == ["spec.model.layers"]


@pytest.mark.parametrize("not_a_manifest", [None, [], "job", 3])
def test_what_is_no_object_is_no_manifest(not_a_manifest: object) -> None:
    with pytest.raises(InvalidJob, match="must be an object with fields"):
        parse_job(not_a_manifest)
