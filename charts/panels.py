"""What the dashboard shows: each panel with its queries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

ALL = 'namespace=~"$namespace"'
ONE = 'namespace=~"$namespace",job="$job"'

# States of a stage in the timeline: what it did for most of the time between two scrapes.
STATES = {
    "0": {"text": "waiting", "color": "orange", "index": 0},
    "1": {"text": "busy", "color": "green", "index": 1},
    "2": {"text": "sending", "color": "blue", "index": 2},
}


def share(counter: str, by: str = "stage") -> str:
    """Share of the last minute that the ranks of a stage spent so, on average; 0 to 1."""
    return f"avg by ({by}) (sum by ({by}, rank) (rate({counter}{{{ONE}}}[$__rate_interval])))"


def stage_state() -> str:
    """1 where the stage was mostly busy, 2 where mostly sending, else 0: one number per stage.

    A stage that never sends has no such series, hence the zero made of its busy time.
    """
    busy = f"({share('gnnpipe_stage_busy_seconds_total')})"
    idle = f"({share('gnnpipe_stage_idle_seconds_total')} or {busy} * 0)"
    sending = f"({share('gnnpipe_comm_wait_seconds_total')} or {busy} * 0)"
    is_busy = f"({busy} >= bool {idle}) * ({busy} >= bool {sending})"
    is_sending = f"({sending} > bool {busy}) * ({sending} > bool {idle})"
    return f"{is_busy} + 2 * {is_sending}"


@dataclass(frozen=True)
class Panel:
    """A panel of `width` x `height` in Grafana's grid of 24 columns; `queries` are (PromQL, legend)."""

    title: str
    kind: str
    queries: list[tuple[str, str]]
    width: int = 8
    height: int = 8
    unit: str = "short"
    about: str = ""
    least: float = 0
    most: float | None = None
    stacked: bool = False
    instant: bool = False
    more: Json = field(default_factory=dict)


AT_A_GLANCE = [
    Panel(
        "Jobs by phase",
        "stat",
        [(f"count by (phase) (gnnpipe_job_phase{{{ALL}}} == 1)", "{{phase}}")],
        width=6,
        instant=True,
    ),
    Panel(
        "Progress",
        "bargauge",
        [(f"gnnpipe_job_progress_ratio{{{ALL}}}", "{{namespace}}/{{job}}")],
        width=6,
        unit="percentunit",
        most=1,
        instant=True,
    ),
    Panel(
        "Jobs",
        "table",
        [
            (f"gnnpipe_job_phase{{{ALL}}} == 1", "phase"),
            (f"sum by (namespace, job) (gnnpipe_job_epoch{{{ALL}}})", "epoch"),
            (f"sum by (namespace, job) (gnnpipe_job_restarts_total{{{ALL}}})", "restarts"),
            (f"sum by (namespace, job) (gnnpipe_job_bubble_ratio{{{ALL}}})", "bubble"),
        ],
        width=12,
        instant=True,
        more={
            "transformations": [
                {"id": "merge", "options": {}},
                {
                    "id": "filterFieldsByName",
                    "options": {
                        "include": {
                            "names": ["namespace", "job", "phase", "Value #B", "Value #C", "Value #D"]
                        }
                    },
                },
                {
                    "id": "organize",
                    "options": {
                        "renameByName": {"Value #B": "epoch", "Value #C": "restarts", "Value #D": "bubble"}
                    },
                },
            ]
        },
    ),
    Panel(
        "Reconciling",
        "timeseries",
        [
            (
                "sum(rate(gnnpipe_reconcile_seconds_sum[$__rate_interval]))"
                " / sum(rate(gnnpipe_reconcile_seconds_count[$__rate_interval]))",
                "seconds each",
            )
        ],
        width=12,
        height=6,
        unit="s",
        about="How long the operator takes to look at one job.",
    ),
    Panel(
        "Reconcile errors",
        "timeseries",
        [("sum(rate(gnnpipe_reconcile_errors_total[$__rate_interval]))", "errors per second")],
        width=12,
        height=6,
    ),
]

ONE_JOB = [
    Panel("Loss", "timeseries", [(f"max(gnnpipe_loss{{{ONE}}})", "loss")]),
    Panel(
        "Accuracy",
        "timeseries",
        [(f"max by (split) (gnnpipe_accuracy{{{ONE}}})", "{{split}}")],
        unit="percentunit",
        most=1,
    ),
    Panel("Epoch time", "timeseries", [(f"max(gnnpipe_epoch_seconds{{{ONE}}})", "seconds")], unit="s"),
    Panel(
        "Pipeline",
        "state-timeline",
        [(stage_state(), "stage {{stage}}")],
        width=24,
        about="What each stage did for most of the time. Orange on all but one stage: that one is too slow.",
        more={"options": {"mergeValues": True, "showValue": "never", "rowHeight": 0.9}},
    ),
    Panel(
        "Stage time",
        "timeseries",
        [
            (share("gnnpipe_stage_busy_seconds_total"), "stage {{stage}} busy"),
            (
                share("gnnpipe_stage_idle_seconds_total", "stage, reason"),
                "stage {{stage}} waiting: {{reason}}",
            ),
            (share("gnnpipe_comm_wait_seconds_total", "stage, kind"), "stage {{stage}} sending: {{kind}}"),
        ],
        width=12,
        unit="percentunit",
        about="Share of each stage's time, averaged over its ranks.",
    ),
    Panel(
        "Bubble against ideal",
        "timeseries",
        [
            (f"gnnpipe_job_bubble_ratio{{{ONE}}}", "measured"),
            (f"gnnpipe_job_bubble_ideal_ratio{{{ONE}}}", "ideal"),
        ],
        width=12,
        unit="percentunit",
        most=1,
        about="Share of the stages' time spent waiting; ideal: filling and draining it.",
    ),
    Panel(
        "Bytes per epoch by kind",
        "timeseries",
        [(f'gnnpipe_job_comm_bytes_per_epoch{{{ONE},kind!="total"}}', "{{kind}}")],
        unit="bytes",
        stacked=True,
    ),
    Panel(
        "Traffic by kind",
        "timeseries",
        [
            (
                f"sum by (kind, direction) (rate(gnnpipe_comm_bytes_total{{{ONE}}}[$__rate_interval]))",
                "{{kind}} {{direction}}",
            )
        ],
        unit="Bps",
    ),
    Panel(
        "Memory",
        "timeseries",
        [(f"max by (stage, rank) (gnnpipe_memory_bytes{{{ONE}}})", "stage {{stage}} rank {{rank}}")],
        unit="bytes",
    ),
    Panel(
        "History drift",
        "timeseries",
        [(f"max by (stage) (gnnpipe_history_drift{{{ONE}}})", "stage {{stage}}")],
        unit="percentunit",
        about="Relative distance between fresh and historical embeddings; the block that is furthest off.",
    ),
    Panel(
        "Read from history",
        "timeseries",
        [(f"max(gnnpipe_stale_share{{{ONE}}})", "share of the edges' weight")],
        unit="percentunit",
        most=1,
        about="How much of what vertices read from their neighbours is of an earlier epoch.",
    ),
    Panel(
        "Gradient oscillation",
        "timeseries",
        [(f"min(gnnpipe_gradient_oscillation{{{ONE}}})", "autocorrelation")],
        least=-1,
        most=1,
        about="Below -0.3 training swings: docs/staleness.md says which setting helps.",
    ),
    Panel("Restarts", "timeseries", [(f"gnnpipe_job_restarts_total{{{ONE}}}", "restarts")]),
    Panel(
        "Checkpoint time",
        "timeseries",
        [(f"max by (stage) (gnnpipe_checkpoint_seconds{{{ONE}}})", "stage {{stage}}")],
        unit="s",
    ),
    Panel(
        "Checkpoints that could not be written",
        "timeseries",
        [(f"max by (stage) (gnnpipe_checkpoint_failures_total{{{ONE}}})", "stage {{stage}}")],
        about="A full disk, mostly: training goes on, but a restart would go back further.",
    ),
]
