"""Random histories: whatever pods, nodes, people, clocks and crashes do, and in whatever order, a job converges.

The real reconciler runs in a played world (played_world.py) that checks each of its writes. It may die after any
of them, and what it sees may be late. GNNPIPE_HISTORIES sets how many histories are tried; GNNPIPE_SHRINK=0 is
content with the first that fails, however long (benchmarks/operator_mutants.py).
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from played_world import EVERY_EPOCHS, START, Died, World

from gnnpipe_operator.observed import ObservedJob, ObservedPod
from gnnpipe_operator.progress import Progress
from gnnpipe_operator.reconcile import Reconciler

KEY = ("team", "cora")
UID = "job-uid"
MOST_STAGES = 3
MOST_LOOKS = 50  # at a job while nothing happens: more is a loop
LONGEST_SILENCE_SECONDS = 10.0  # of a watch
LONGEST_SLEEP_SECONDS = 300.0  # of the queue
ENDS: dict[str, list[dict[str, Any]]] = {
    "error": [{"exit_code": 1, "message": "KeyError: x"}, {"exit_code": 137, "reason": "OOMKilled"}],
    "disruption": [{"exit_code": 75}, {"reason": "Evicted"}],
    "invalid": [{"exit_code": 2}],
}
seen = st.sampled_from([True, True, True, False])  # whether the watch tells of it at once
causes = st.sampled_from(["error", "error", "error", "disruption", "disruption", "invalid"])
AUTO = [{"stages": "auto", "maxRanks": most} for most in (2, MOST_STAGES)]
cuts = st.sampled_from([*({"stages": stages} for stages in range(1, MOST_STAGES + 1)), *AUTO])


class Histories(RuleBasedStateMachine):
    @initialize(
        cut=cuts,
        backoff_limit=st.integers(0, 2),
        deadline=st.sampled_from([None, None, 600]),
        ttl=st.sampled_from([None, 0, 100]),
        clean=st.sampled_from(["Running", "All", "None"]),
    )
    def apply(
        self, cut: dict[str, Any], backoff_limit: int, deadline: int | None, ttl: int | None, clean: str
    ) -> None:
        policy: dict[str, Any] = {"backoffLimit": backoff_limit, "cleanPods": clean}
        if deadline:
            policy["activeDeadlineSeconds"] = deadline
        if ttl is not None:
            policy["ttlSecondsAfterFinished"] = ttl
        spec = {
            "graph": {"source": "synthetic"},
            "model": {"kind": "gcn", "layers": 8},
            "training": {"epochs": 100},
            "parallelism": cut,
            "checkpoint": {
                "everyEpochs": EVERY_EPOCHS,
                "volume": {"persistentVolumeClaim": {"claimName": "c"}},
            },
            "runPolicy": policy,
        }
        self.runner = asyncio.Runner()
        self.world = World(ObservedJob("cora", "team", UID, START, spec, resource_version=1))
        self.start_operator()
        self.look()

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.settle()
            self.runner.close()

    # --- the operator

    def start_operator(self) -> None:
        self.world.store = self.store = type(self.world.store)()
        self.world.told_epoch = 0
        self.reconciler = Reconciler(self.store, self.world, "image", clock=lambda: self.world.now)
        self.wake_after: float | None = 0.0  # seconds of the world at which the queue looks again
        self.see()

    def see(self) -> None:
        """All events come through."""
        if self.world.exists:
            self.store.put_job(self.world.job)
        there = {pod.uid for pod in self.world.pods.values()}
        for pod in self.world.pods.values():
            self.store.put_pod(KEY, pod)
        for uid in set(self.store.versions("pods")) - there:
            self.store.drop_pod(KEY, uid)

    def look(self) -> None:
        """Once, as the queue would, with a new operator in place of one that died."""
        try:
            wake_at = self.runner.run(self.reconciler.reconcile(KEY))
        except Died:
            self.world.writes_left = None
            self.start_operator()
            wake_at = self.world.now
        if not self.world.exists:
            self.store.drop_job(KEY, UID)
            wake_at = None
        delay = None if wake_at is None else (wake_at - self.world.now).total_seconds()
        self.wake_after = (
            None if delay is None else self.world.seconds + min(max(delay, 0.0), LONGEST_SLEEP_SECONDS)
        )
        self.check_the_moment()

    def happens(self, told: bool) -> None:
        """Something did. If the watch tells of it, the operator looks until it wants to sleep."""
        if not told:
            return
        self.see()
        self.look()
        self.run_queue(0)

    def run_queue(self, seconds: float) -> None:
        """Time passes; the operator looks whenever it asked to be woken, and no watch stays silent for long."""
        until, looks = self.world.seconds + seconds, 0
        if seconds > LONGEST_SILENCE_SECONDS:
            self.run_queue(LONGEST_SILENCE_SECONDS)
            self.see()
            self.look()
        while self.wake_after is not None and self.wake_after <= until:
            self.world.seconds = max(self.world.seconds, self.wake_after)
            self.look()
            looks += 1
            assert looks < MOST_LOOKS, "it looks again and again though nothing happens"
        self.world.seconds = until

    @rule(writes=st.integers(0, 6))
    def the_operator_will_die(self, writes: int) -> None:
        self.world.writes_left = writes

    @rule()
    def the_watch_catches_up(self) -> None:
        self.happens(True)

    # --- the cluster

    def some_pod(self, data: st.DataObject) -> str:
        return str(data.draw(st.sampled_from(sorted(self.world.pods))))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), told=seen)
    def a_pod_starts(self, data: st.DataObject, told: bool) -> None:
        self.world.start_pod(self.some_pod(data))
        self.happens(told)

    @precondition(lambda self: self.world.pods)
    @rule(told=seen)
    def all_pods_start(self, told: bool) -> None:
        for name in list(self.world.pods):
            self.world.start_pod(name)
        self.happens(told)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), cause=causes, told=seen, peers=st.booleans())
    def a_pod_ends(self, data: st.DataObject, cause: str, told: bool, peers: bool) -> None:
        self.world.end_pod(self.some_pod(data), cause, **data.draw(st.sampled_from(ENDS[cause])))
        if peers:
            self.world.lose_peers()
        self.happens(told)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), cause=st.sampled_from(["error", "error", "disruption"]), epochs=st.integers(0, 15))
    def an_attempt_trains_and_fails(self, data: st.DataObject, cause: str, epochs: int) -> None:
        """What else takes many steps: from the start of all pods to the next attempt."""
        self.all_pods_start(told=True)
        if epochs and self.world.job.status.phase == "Running":
            self.training_goes_on(epochs)
        if self.world.pods:
            self.a_pod_ends(data, cause, told=True, peers=True)
        self.kubelets_confirm(told=True)
        self.run_queue(70)

    @precondition(lambda self: self.world.pods)
    @rule(told=seen)
    def the_others_lose_their_peer(self, told: bool) -> None:
        self.world.lose_peers()
        self.happens(told)

    @precondition(lambda self: self.world.pods)
    @rule(told=seen, how_many=st.integers(1, MOST_STAGES))
    def pods_are_done(self, told: bool, how_many: int) -> None:
        running = [pod for pod in self.world.pods.values() if pod.running and not pod.deleting]
        for pod in running[:how_many]:
            if not pod.plans:
                self.world.end_pod(pod.name, "done", phase="Succeeded", exit_code=0)
        self.happens(told)

    @precondition(lambda self: any(pod.plans for pod in self.world.pods.values()))
    @rule(told=seen, stages=st.integers(1, MOST_STAGES), readable=st.sampled_from([True, True, True, False]))
    def a_planner_is_done(self, told: bool, stages: int, readable: bool) -> None:
        for pod in list(self.world.pods.values()):
            if pod.plans and not pod.deleting:
                self.world.start_pod(pod.name)
                self.world.end_planner(pod.name, stages, readable=readable)
        self.happens(told)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), told=seen, at_once=st.booleans())
    def a_pod_is_deleted_by_somebody(self, data: st.DataObject, told: bool, at_once: bool) -> None:
        self.world.delete_by_somebody(self.some_pod(data), at_once=at_once)
        self.happens(told)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), told=seen)
    def a_node_is_lost(self, data: st.DataObject, told: bool) -> None:
        self.world.lose_node(self.some_pod(data))
        self.world.lose_peers()
        self.happens(told)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), told=seen)
    def a_pod_hangs(self, data: st.DataObject, told: bool) -> None:
        self.world.hang(self.some_pod(data))
        self.world.lose_peers()
        self.happens(told)

    @rule(told=seen)
    def lost_nodes_are_noticed(self, told: bool) -> None:
        self.world.notice_lost_nodes()
        self.happens(told)

    @rule(told=seen)
    def kubelets_confirm(self, told: bool) -> None:
        self.world.confirm_deletions()
        self.happens(told)

    @precondition(lambda self: self.world.job.status.phase == "Running")
    @rule(epochs=st.integers(1, 15))
    def training_goes_on(self, epochs: int) -> None:
        world = self.world
        world.told_epoch = min(max(world.told_epoch, world.job.status.epoch or 0) + epochs, 100)
        self.reconciler.progress[UID] = Progress(epoch=world.told_epoch, epochs=100)
        self.look()

    # --- people and time

    @rule(suspend=st.booleans(), told=seen)
    def somebody_suspends_or_resumes(self, suspend: bool, told: bool) -> None:
        self.edit(runPolicy={**self.world.job.spec["runPolicy"], "suspend": suspend})
        self.happens(told)

    @rule(cut=cuts, told=seen)
    def somebody_cuts_anew(self, cut: dict[str, Any], told: bool) -> None:
        self.edit(parallelism=cut)
        self.happens(told)

    @rule(layers=st.sampled_from([8, 16]), told=seen)
    def somebody_wants_another_model(self, layers: int, told: bool) -> None:
        self.edit(model={"kind": "gcn", "layers": layers})
        self.happens(told)

    def edit(self, **parts: Any) -> None:
        job = self.world.job
        if self.world.exists and {**job.spec, **parts} != job.spec:
            self.world.change_job(spec={**job.spec, **parts}, generation=job.generation + 1)

    @rule(seconds=st.sampled_from([1, 5, 10, 30, 70, 400]))
    def time_passes(self, seconds: int) -> None:
        self.run_queue(seconds)

    @rule(seconds=st.integers(-3600, 3600))
    def the_clock_jumps(self, seconds: int) -> None:
        self.world.skew = seconds
        self.world.jumped = True

    # --- what must hold at every moment

    def check_the_moment(self) -> None:
        pods, status = list(self.world.pods.values()), self.world.job.status
        alive = [pod for pod in pods if not pod.over]
        assert len({(pod.stage, pod.attempt) for pod in pods}) == len(pods)
        assert len(alive) <= MOST_STAGES
        assert len({pod.attempt for pod in alive}) <= 1, "two attempts at once"
        if self.wake_after is None:
            kept = self.world.job.spec["runPolicy"].get("ttlSecondsAfterFinished") is None
            assert not self.world.exists or (status.finished and kept), "an unfinished job was forgotten"

    # --- and in the end

    def settle(self) -> None:
        """A cluster that works, an operator that sees, nobody who meddles: the job comes to its end, in time."""
        self.world.writes_left = None
        self.edit(runPolicy={**self.world.job.spec["runPolicy"], "suspend": False})
        for step in range(80):
            if not self.world.exists or self.world.job.status.finished:
                break
            self.kubelets_work()
            self.happens(True)
            self.run_queue(5 if step < 40 else 300)  # a clock that jumped may keep it waiting for long
        assert not self.world.exists or self.world.job.status.finished, self.world.job.status
        self.check_the_end()

    def kubelets_work(self) -> None:
        world = self.world
        world.confirm_deletions()
        running = world.job.status.phase == "Running"
        for pod in list(world.pods.values()):
            world.start_pod(pod.name)
            if pod.node_lost:
                world.delete_by_somebody(pod.name)  # as Kubernetes does in the end
        world.lose_peers()  # first: nobody comes to the end of training without the others
        for pod in list(world.pods.values()):
            if pod.plans and pod.running and not pod.deleting:
                world.end_planner(pod.name, 1 + pod.attempt % MOST_STAGES)
            elif running and pod.running and not pod.deleting:
                world.end_pod(pod.name, "done", phase="Succeeded", exit_code=0)
        world.notice_lost_nodes()

    def check_the_end(self) -> None:
        world, status = self.world, self.world.job.status
        told = [key for key in world.events if key.startswith("restart-")]
        assert len(told) >= status.restarts, "a restart that nobody was told of"
        for _ in range(30):  # lost nodes take longest
            world.confirm_deletions()
            self.happens(True)
            self.run_queue(300 if world.jumped else 5)
        policy = world.job.spec["runPolicy"]
        ttl = policy.get("ttlSecondsAfterFinished")
        assert world.exists == (ttl is None), "the job outlived its time"
        if world.deleted_at is not None and not world.jumped:
            assert world.finished_at is not None
            assert world.deleted_at - world.finished_at <= ttl + 1, "the job was deleted late"
        self.check_pods(list(world.pods.values()), policy["cleanPods"])
        quiet = world.version
        self.look()
        assert world.version == quiet, "the operator keeps writing though nothing happens"

    def check_pods(self, left: list[ObservedPod], clean: str) -> None:
        status = self.world.job.status
        assert all(pod.finished for pod in left), "a finished job holds a GPU"
        assert all(pod.attempt == status.attempt for pod in left), "a survivor of a dead attempt"
        assert not left or clean != "All", "a pod that was to be cleaned"
        assert status.plan is None or not any(pod.plans for pod in left), "a planner outlived its plan"
        if status.phase == "Succeeded":
            assert status.plan is not None
            assert status.plan.stages == 1 or self.world.services, "the ranks could not have met"
            assert len(left) <= status.plan.stages


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=int(os.environ.get("GNNPIPE_HISTORIES", "150")),
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.generate] if os.environ.get("GNNPIPE_SHRINK") == "0" else list(Phase),
    suppress_health_check=list(HealthCheck),
)
