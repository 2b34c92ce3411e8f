"""What a manifest means when it says little, and that nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import load_job, parse_job

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
ManifestWith = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_valid(example: Path) -> None:
    assert load_job(example).name == example.stem


def test_a_small_manifest_trains_in_full_batch_with_the_safe_history(manifest: dict[str, Any]) -> None:
    spec = parse_job(manifest).spec
    assert (spec.parallelism.stages, spec.parallelism.ways, spec.parallelism.chunks) == (1, 1, None)
    assert (spec.parallelism.history.mode, spec.parallelism.history.decay) == ("ema", 0.9)
    assert spec.parallelism.fresh_gradient_factor == 1.0
    assert spec.worker.gpu_resource == "nvidia.com/gpu"
    assert spec.run_policy.clean_pods == "Running"


def test_an_empty_section_means_its_defaults(manifest_with: ManifestWith) -> None:
    assert parse_job(manifest_with({"spec.training": None})).spec.training.epochs == 200


def test_what_kubernetes_adds_to_an_object_is_ignored(manifest_with: ManifestWith) -> None:
    stored = manifest_with(
        {
            "metadata.uid": "9f7c",
            "metadata.managedFields": [{"manager": "kubectl"}],
            "status": {"phase": "Running"},
        }
    )
    assert parse_job(stored).manifest()["metadata"]["name"] == "squirrel"
    assert "status" not in parse_job(stored).manifest()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_manifest_written_with_all_its_defaults_is_the_same_job(example: Path) -> None:
    job = load_job(example)
    assert parse_job(job.manifest()) == job


def test_a_volume_keeps_its_source_apart_from_where_it_is_mounted(manifest_with: ManifestWith) -> None:
    claim = {"claimName": "graphs"}
    job = parse_job(
        manifest_with(
            {
                "spec.graph": {"source": "npz", "path": "/data/g.npz"},
                "spec.graph.volume": {"persistentVolumeClaim": claim, "mountPath": "/data"},
            }
        )
    )
    assert job.spec.graph.volume is not None
    assert job.spec.graph.volume.source == {"persistentVolumeClaim": claim}
    assert job.spec.graph.volume.mount_path == "/data"


def test_a_pod_template_may_add_what_is_not_ours(manifest_with: ManifestWith) -> None:
    template = {
        "metadata": {"labels": {"team": "graphs"}},
        "spec": {
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "trainer", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
                {"name": "logs", "image": "logs:1", "command": ["ship"]},
            ],
        },
    }
    assert parse_job(manifest_with({"spec.worker.template": template})).spec.worker.template == template


def test_a_model_of_ones_own_may_bring_its_code(manifest_with: ManifestWith) -> None:
    own = {"kind": "pkg.my_model:build", "layers": 4, "code": {"configMap": "my-model"}}
    model = parse_job(manifest_with({"spec.model": own})).spec.model
    assert not model.is_built_in
    assert model.code is not None
    assert model.code.config_map == "my-model"


def test_a_job_cannot_be_changed_after_it_was_checked(manifest: dict[str, Any]) -> None:
    job: Any = parse_job(manifest)
    with pytest.raises(ValidationError):
        job.spec.model.layers = 1


def test_every_field_says_what_it_means() -> None:
    def silent(model: Any, path: str) -> list[str]:
        found = []
        for name, field in model.model_fields.items():
            if not field.description:
                found.append(f"{path}.{name}")
            found += (
                silent(field.annotation, f"{path}.{name}")
                if hasattr(field.annotation, "model_fields")
                else []
            )
        return found

    assert silent(GNNPipeJob.model_fields["spec"].annotation, "spec") == []
