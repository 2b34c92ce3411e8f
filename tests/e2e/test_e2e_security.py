"""Pods under the rules of the restricted profile, enforced by the API server as everywhere in these tests."""

from __future__ import annotations

import restricted
from disturbed import NAME, Steady
from installation import Installation
from jobs import Jobs

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


def test_code_in_a_job_is_nobody_holds_no_token_and_cannot_write_to_its_root(
    installation: Installation, jobs: Jobs, steady: Steady
) -> None:
    jobs.apply(steady.manifest)
    jobs.until_checkpoint(NAME)
    for pod in (*jobs.pods(NAME).values(), installation.operator_pod()):
        assert pod["metadata"]["annotations"]["kubernetes.io/psp"] == restricted.NAME
    look = f"id -u; test -e {TOKEN} || echo no token; touch /app/x 2>&1; grep CapEff /proc/self/status"
    user, token, write, capabilities = jobs.kubectl(
        "exec", f"{NAME}-s0-a0", "--", "sh", "-c", look
    ).splitlines()
    assert (user, token) == ("65532", "no token")
    assert "Read-only file system" in write
    assert int(capabilities.split()[1], 16) == 0


def test_a_job_that_wants_to_be_root_is_refused_and_says_so(jobs: Jobs, steady: Steady) -> None:
    jobs.apply(steady.with_template(securityContext={"runAsUser": 0, "runAsNonRoot": False}))
    jobs.until("it is told", lambda: "runAsNonRoot" in (jobs.status(NAME).get("message") or ""), 60)
    assert jobs.condition(NAME, "Running")["reason"] == "PodRefused"
    assert jobs.pods(NAME) == {}
