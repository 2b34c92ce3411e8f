"""What a rule about several fields is made of. The rules themselves are in rules_*.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gnnpipe_api.job import JobSpec
from gnnpipe_api.problems import Problem

Check = Callable[[JobSpec], Iterator[Problem]]


@dataclass(frozen=True)
class Cel:
    """A rule for the API server, on `spec` after defaulting: true where the manifest is right."""

    expression: str
    message: str


@dataclass(frozen=True)
class Rule:
    """A check, the fields it reads, and its twins in CEL if it has any."""

    reads: tuple[str, ...]
    check: Check
    cel: tuple[Cel, ...]


def rule(*reads: str, cel: tuple[Cel, ...] = ()) -> Callable[[Check], Rule]:
    """Make a rule of a check, under the fields it reads."""
    return lambda check: Rule(reads, check, cel)
