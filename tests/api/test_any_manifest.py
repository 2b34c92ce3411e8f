"""Whatever a person or a program writes into a manifest, it is taken or refused in sentences."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import InvalidJob, Problem, parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_api.problems import field_paths

VALID: dict[str, Any] = {
    "apiVersion": "gnnpipe.io/v1alpha1",
    "kind": "GNNPipeJob",
    "metadata": {"name": "any"},
    "spec": {"graph": {"source": "synthetic"}, "model": {"kind": "gcn", "layers": 4}},
}
TEMPLATE_PATHS = [
    f"spec.worker.template.{path}"
    for path in ("metadata", "metadata.labels", "spec", "spec.containers", "spec.initContainers")
]
PATHS = [*field_paths(GNNPipeJob), *TEMPLATE_PATHS]

words = st.sampled_from(
    ["", "auto", "npz", "gcn", "trainer", "name", "env", "mountPath", "/data", "a:b", "\x00"]
)
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), words)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(words, st.integers(0, 3)), inner, max_size=3),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(PATHS), values, min_size=1, max_size=4))
def test_any_value_in_any_field_is_taken_or_refused_in_sentences(changes: dict[str, Any]) -> None:
    manifest = copy.deepcopy(VALID)
    for path, value in changes.items():
        here: Any = manifest
        *sections, last = path.split(".")
        for section in sections:
            here = here.setdefault(section, {}) if isinstance(here, dict) else None
        if isinstance(here, dict):
            here[last] = copy.deepcopy(value)
    before = repr(manifest)
    problems: list[Problem] = []
    try:
        job = parse_job(manifest)
    except InvalidJob as refused:
        problems = refused.problems
        assert problems, "refused without a reason"
    else:
        plan = make_plan(job)
        assert sum(plan.layers_per_stage) == job.spec.model.layers
        assert plan.chunks % plan.ways == 0
        assert parse_job(job.manifest()) == parse_job(job.manifest(defaults=False)) == job
    for problem in problems:
        assert problem.sentence.endswith((".", "?"))
        assert len(problem.sentence) < 400
    assert len(set(problems)) == len(problems)
    assert repr(manifest) == before
