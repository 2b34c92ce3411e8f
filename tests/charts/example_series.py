"""Every series that trainer and operator export, as three stages would that train for ten minutes.

Stage 0 is mostly busy, stage 1 mostly waits, stage 2 mostly sends: so the dashboard can be checked by what it says.
"""

from __future__ import annotations

from dataclasses import dataclass

SCRAPE_SECONDS = 30
SCRAPES = 21


@dataclass(frozen=True)
class Climb:
    """A series that begins at `first` and climbs by `step` with each scrape."""

    first: float
    step: float = 0

    def for_promtool(self) -> str:
        return f"{self.first}{self.step:+}x{SCRAPES - 1}"

    def values(self) -> list[float]:
        return [self.first + self.step * scrape for scrape in range(SCRAPES)]


STAGE_SECONDS = {0: (25, 3, 0), 1: (5, 20, 5), 2: (5, 5, 20)}  # per scrape: busy, waiting, sending

JOB = 'namespace="a",job="j"'
OPERATOR_SERIES = {
    f'gnnpipe_job_phase{{{JOB},phase="Running"}}': Climb(1),
    f"gnnpipe_job_progress_ratio{{{JOB}}}": Climb(0, 0.01),
    f"gnnpipe_job_epoch{{{JOB}}}": Climb(0, 1),
    f"gnnpipe_job_restarts_total{{{JOB}}}": Climb(0),
    f"gnnpipe_job_bubble_ratio{{{JOB}}}": Climb(0.2),
    f"gnnpipe_job_bubble_ideal_ratio{{{JOB}}}": Climb(0.1),
    f'gnnpipe_job_comm_bytes_per_epoch{{{JOB},kind="pipeline"}}': Climb(500),
    'gnnpipe_reconcile_seconds_sum{pod="operator"}': Climb(0, 1),
    'gnnpipe_reconcile_seconds_count{pod="operator"}': Climb(0, 10),
    'gnnpipe_reconcile_errors_total{pod="operator"}': Climb(0),
}


def stage_series(stage: int) -> dict[str, Climb]:
    worker = f'{JOB},stage="{stage}",rank="{stage}"'
    busy, waiting, sending = STAGE_SECONDS[stage]
    found = {
        f"gnnpipe_epoch{{{worker}}}": Climb(0, 1),
        f"gnnpipe_loss{{{worker}}}": Climb(5, -0.1),
        f'gnnpipe_accuracy{{{worker},split="test"}}': Climb(0.1, 0.01),
        f"gnnpipe_epoch_seconds{{{worker}}}": Climb(30),
        f'gnnpipe_history_drift{{{worker},block="{stage}"}}': Climb(0.1),
        f"gnnpipe_stale_share{{{worker}}}": Climb(0.3),
        f"gnnpipe_gradient_oscillation{{{worker}}}": Climb(-0.1),
        f"gnnpipe_checkpoint_seconds{{{worker}}}": Climb(2),
        f"gnnpipe_checkpoint_failures_total{{{worker}}}": Climb(0),
        f"gnnpipe_memory_bytes{{{worker}}}": Climb(1000),
        f'gnnpipe_comm_bytes_total{{{worker},kind="pipeline",direction="sent"}}': Climb(0, 500),
        f"gnnpipe_stage_busy_seconds_total{{{worker}}}": Climb(0, busy),
        # Two reasons, to be added up.
        f'gnnpipe_stage_idle_seconds_total{{{worker},reason="forward"}}': Climb(0, waiting - 1),
        f'gnnpipe_stage_idle_seconds_total{{{worker},reason="backward"}}': Climb(0, 1),
    }
    if sending:  # a stage that never sent has no such series at all
        found[f'gnnpipe_comm_wait_seconds_total{{{worker},kind="pipeline"}}'] = Climb(0, sending)
    return found


def all_series() -> dict[str, Climb]:
    return OPERATOR_SERIES | {
        name: climb for stage in STAGE_SECONDS for name, climb in stage_series(stage).items()
    }


def as_open_metrics(start: int) -> str:
    """The series as text that promtool can fill a Prometheus with; `start` in Unix seconds."""
    lines = [
        f"{name} {value} {start + scrape * SCRAPE_SECONDS}"
        for name, climb in all_series().items()
        for scrape, value in enumerate(climb.values())
    ]
    return "\n".join([*lines, "# EOF", ""])
