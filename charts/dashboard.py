"""The Grafana dashboard as data, made of the panels in panels.py.

`python charts/generate.py` writes it to gnnpipe/dashboards/gnnpipe.json, which is what people import.
"""

from __future__ import annotations

from panels import ALL, AT_A_GLANCE, ONE_JOB, STATES, Json, Panel

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def render(panel: Panel, identity: int, x: int, y: int) -> Json:
    defaults: Json = {"unit": panel.unit, "min": panel.least}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 30 if panel.stacked else 0, "showPoints": "auto"}
        if panel.stacked:
            defaults["custom"]["stacking"] = {"mode": "normal"}
    if panel.kind == "state-timeline":
        defaults["mappings"] = [{"type": "value", "options": STATES}]
        defaults["color"] = {"mode": "fixed"}
    return {
        "id": identity,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
                "instant": panel.instant,
                "range": not panel.instant,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for place, (expression, legend) in enumerate(panel.queries)
        ],
        **panel.more,
    }


def lay_out(rows: dict[str, list[Panel]]) -> list[Json]:
    """Panels from left to right, a new line where 24 columns are full; a titled row before each group."""
    placed: list[Json] = []
    y = 0
    for title, panels in rows.items():
        placed.append(
            {
                "id": len(placed) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
            }
        )
        y, x, tallest = y + 1, 0, 0
        for panel in panels:
            if x + panel.width > 24:
                y, x, tallest = y + tallest, 0, 0
            placed.append(render(panel, len(placed) + 1, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return placed


def variable(name: str, query: str, many: bool) -> Json:
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": many,
        "includeAll": many,
        "current": {"text": ["All"], "value": ["$__all"]} if many else {},
    }


def dashboard() -> Json:
    return {
        "uid": "gnnpipe",
        "title": "GNNPipe",
        "description": "GNNPipeJobs: all at a glance, and one in detail.",
        "tags": ["gnnpipe"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                variable("namespace", "label_values(gnnpipe_job_phase, namespace)", many=True),
                variable("job", f"label_values(gnnpipe_job_phase{{{ALL}}}, job)", many=False),
            ]
        },
        "panels": lay_out({"All jobs": AT_A_GLANCE, "Job $job": ONE_JOB}),
    }
