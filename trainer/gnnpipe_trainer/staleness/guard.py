"""Notices that training diverges, on every rank alike, and says what to do about it.

Only the last stage knows the loss. Its sum goes to all ranks while the next epoch runs, so every rank sees the same
losses, one epoch late, and comes to the same verdict without another word.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gnnpipe_api.job import GNNPipeJob, HistorySpec
from gnnpipe_trainer.learning_rate import learning_rate
from gnnpipe_trainer.pipeline.history import History
from gnnpipe_trainer.staleness.advice import calmer, calmer_decay

SMOOTHED_EPOCHS = 10  # a loss is judged by its mean over so many epochs: dropout makes single ones jump
LEAST_GAIN = 0.05  # of the first loss; before so much is learned there is nothing to lose
EXPLODED = 2.0  # times the first loss: diverged, whatever was gained before


class Diverged(RuntimeError):
    """Training is no use any more; the sentence says since when and what to change."""


class SharedLoss:
    """The job's loss on every rank, one epoch late, at the price of a word that nobody waits for."""

    def __init__(self, control: dist.ProcessGroup) -> None:
        self._control = control
        self._pending: tuple[int, dist.Work, Tensor] | None = None

    def share(self, epoch: int, loss: float) -> None:
        """`loss` is this rank's part of it. Read the one before first."""
        total = torch.tensor([loss], dtype=torch.float64)
        work = dist.all_reduce(total, group=self._control, async_op=True)
        assert work is not None
        self._pending = (epoch, work, total)

    def read(self) -> tuple[int, float] | None:
        """Epoch and loss of what was shared last, once."""
        if self._pending is None:
            return None
        epoch, work, total = self._pending
        self._pending = None
        work.wait()
        return epoch, float(total)


@dataclass(frozen=True)
class Verdict:
    """Training diverges: since which epoch, and how it shows."""

    epoch: int
    reason: str
    finite: bool = True  # else: the loss is no number, and never will be again


@dataclass(frozen=True)
class Ruling:
    """What is to be done about a verdict; `note` is for a person to read."""

    go_back: bool
    note: str | None = None


class Guard:
    """Follows the loss. A pure function of the losses it was told, so that all ranks and resumed runs agree."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self._recent: deque[float] = deque(maxlen=SMOOTHED_EPOCHS)
        self._first: float | None = None
        self._best = math.inf
        self._begins = True
        self.began_spoilt = False  # the weights that training was taken up with had diverged already

    def look(self, epoch: int, loss: float) -> Verdict | None:
        """Take in the loss of an epoch."""
        if (
            self._begins
        ):  # a checkpoint holds the weights after an epoch's step, whose loss is seen here first
            self._begins, self.began_spoilt = False, not loss <= self._highest
        if not math.isfinite(loss):
            return Verdict(epoch, f"the loss of epoch {epoch} is {loss}", finite=False)
        self._first = loss if self._first is None else self._first
        self._recent.append(loss)
        now = fmean(self._recent)
        self._best = min(self._best, now)
        gained = self._first - self._best
        risen = gained > LEAST_GAIN * self._first and now > self._best + self.tolerance * gained
        exploded = now > EXPLODED * self._first
        if not (exploded or (risen and len(self._recent) == SMOOTHED_EPOCHS)):
            return None
        return Verdict(
            epoch,
            f"the loss rose to {now:.4g} (mean of {len(self._recent)} epochs until {epoch}) after it had been "
            f"{self._first:.4g} at first and {self._best:.4g} at best",
        )

    @property
    def _highest(self) -> float:
        """What a single loss may be without having lost more than is tolerated of what was gained."""
        if self._first is None:
            return math.inf
        return self._best + self.tolerance * (self._first - self._best) + LEAST_GAIN * self._first

    @property
    def at_ease(self) -> bool:
        """Whether what was learned so far is worth keeping: the loss is nearer to its best than to the verdict."""
        if self._first is None:
            return True
        gained = self._first - self._best
        return fmean(self._recent) <= self._best + 0.5 * self.tolerance * gained + LEAST_GAIN * self._first

    def saved(self) -> dict[str, Any]:
        """For a checkpoint."""
        best = self._best if math.isfinite(self._best) else None
        return {"recent": list(self._recent), "first": self._first, "best": best}

    def restore(self, saved: dict[str, Any] | None) -> None:
        saved = saved or {"recent": [], "first": None, "best": None}
        self._recent = deque(saved["recent"], maxlen=SMOOTHED_EPOCHS)
        self._first = saved["first"]
        self._best = math.inf if saved["best"] is None else saved["best"]
        self._begins = True


class DivergenceWatch:
    """One rank's: listens to the job's loss and carries out what the manifest says about divergence."""

    def __init__(self, job: GNNPipeJob, control: dist.ProcessGroup, exact: bool) -> None:
        self._job, self._exact = job, exact
        self.spec = job.spec.training.divergence
        self._shared = SharedLoss(control)
        self._guard = Guard(self.spec.tolerance)
        self.rollbacks = 0
        self._warned = False

    def after_epoch(self, epoch: int, loss: float) -> Verdict | None:
        """What the epoch before this one says; this one's loss (this rank's part) is on its way."""
        verdict = self.settle()
        self._shared.share(epoch, loss)
        return verdict

    @property
    def began_spoilt(self) -> bool:
        """Whether what training was taken up with is nothing to go back to again."""
        return self._guard.began_spoilt

    def settle(self) -> Verdict | None:
        """Wait for the loss that is on its way: before a checkpoint, and at the end."""
        told = self._shared.read()
        return None if told is None else self._guard.look(*told)

    @property
    def at_ease(self) -> bool:
        """Whether a checkpoint taken now is one to go back to."""
        return self.spec.action != "rollback" or self._guard.at_ease

    def judge(self, verdict: Verdict) -> Ruling:
        """Carry out what the manifest says; raises Diverged where training must not go on."""
        sentence = f"training diverged: {verdict.reason}. {self._way_out()}"
        if self.spec.action == "rollback":
            if self.rollbacks >= self.spec.max_rollbacks:
                raise Diverged(
                    f"{sentence} (after {self.rollbacks} rollbacks, spec.training.divergence.maxRollbacks)"
                )
            self.rollbacks += 1
            return Ruling(go_back=True)
        if self.spec.action == "fail" or not verdict.finite:
            raise Diverged(sentence)
        if self._warned:
            return Ruling(go_back=False)
        self._warned = True
        told = f"{sentence[0].upper()}{sentence[1:]}, or set spec.training.divergence.action to rollback"
        return Ruling(go_back=False, note=told)

    @property
    def _halved(self) -> float:
        """What rollbacks have left of the learning rate: each has halved it."""
        return 0.5**self.rollbacks

    def learning_rate(self, epoch: int) -> float:
        """What the step at the end of `epoch` is to take."""
        return self._halved * learning_rate(self._job.spec.training, epoch)

    @property
    def history(self) -> HistorySpec:
        """With mode ema each rollback makes the average half as fast."""
        spec = self._job.spec.parallelism.history
        for _ in range(self.rollbacks):
            spec = spec.model_copy(update={"decay": calmer_decay(spec)})
        return spec

    def calm(self, histories: Iterable[History]) -> None:
        """Set what rollbacks have made of the manifest's history; each step brings its own rate."""
        for history in histories:
            history.spec = history.spec.model_copy(update={"decay": self.history.decay})

    def settings(self, epoch: int) -> str:
        """What training goes on with from `epoch` on, in words."""
        rate, highest = self.learning_rate(epoch), self._halved * self._job.spec.training.learning_rate
        said = f"learning rate {rate:g}"
        if rate != highest:
            said += f" ({highest:g} at the top of its learning-rate schedule)"
        with_history = not self._exact and self.history.mode == "ema"
        return f"{said}, history.decay {self.history.decay:g}" if with_history else said

    def saved(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"rollbacks": self.rollbacks, "warned": self._warned, "guard": self._guard.saved()}

    def restore(self, saved: dict[str, Any] | None) -> None:
        """As it was at a checkpoint; rollbacks that came after it count all the same."""
        self.rollbacks = max(self.rollbacks, saved["rollbacks"] if saved else 0)
        self._warned = bool(saved and saved["warned"])
        self._guard.restore(saved["guard"] if saved else None)
        self._shared.read()

    def _way_out(self) -> str:
        training = self._job.spec.training
        if self._exact:
            return f"Lower spec.training.learningRate ({training.learning_rate:g})"
        return calmer(self._job.spec.parallelism.history, training.learning_rate)
