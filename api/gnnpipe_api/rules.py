"""What one field of a manifest cannot say about another: combinations that cannot run.

Each rule names the fields it reads. A rule is skipped when one of them is already wrong by itself, so that a
person sees every mistake at once but none twice. Rules that fit into CEL carry their twin in CEL, with which
newer clusters refuse the manifest at `kubectl apply`. The operator checks all of them in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gnnpipe_api.job import JobSpec
from gnnpipe_api.problems import Problem
from gnnpipe_api.rule import Rule
from gnnpipe_api.rules_cluster import CLUSTER_RULES
from gnnpipe_api.rules_graph import GRAPH_RULES
from gnnpipe_api.rules_template import TEMPLATE_RULES
from gnnpipe_api.rules_training import TRAINING_RULES

RULES: tuple[Rule, ...] = (*GRAPH_RULES, *TRAINING_RULES, *CLUSTER_RULES, *TEMPLATE_RULES)


def broken_rules(spec: JobSpec, wrong_fields: Iterable[str] = ()) -> Iterator[Problem]:
    """Every problem of a spec whose fields are right by themselves, except those that read a wrong field."""
    wrong = tuple(wrong_fields)
    for each in RULES:
        if not any(_overlap(field, path) for field in each.reads for path in wrong):
            yield from each.check(spec)


def _overlap(one: str, other: str) -> bool:
    """Whether two paths meet: the same field, or one inside the other."""
    one, other = one + ".", other + "."
    return one.startswith(other) or other.startswith(one)
