"""Writes dashboards/cachewise.json from panels.py; to be run after every change of a panel.

`--print` writes to stdout instead.

The classic dashboard format, which every Grafana in use reads from a provisioned file.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from panels import ROWS, Panel

with warnings.catch_warnings():
    # The SDK recommends the v2 format on import; it needs Grafana 12 or newer.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import dashboard

OUTPUT = Path(__file__).parent / "dashboards" / "cachewise.json"
DATASOURCE = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
GRID_WIDTH = 24


def render() -> str:
    """The dashboard as the JSON text of the committed file."""
    variable = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    # The SDK gives every variable the fields of an interval variable; Grafana's schema does not.
    variable_model = variable.build()
    variable_model.auto = variable_model.auto_min = variable_model.auto_count = None
    board = (
        dashboard.Dashboard("CacheWise")
        .uid("cachewise")
        .description("KV cache eviction by forecast: vLLM, the scheduler in it, and the predictor")
        .tags(["cachewise", "vllm"])
        .time("now-15m", "now")
        .refresh("10s")
        .timezone("browser")
        .with_variable(variable)
    )
    ids = iter(range(1, 1_000))
    for row in ROWS:
        board.with_row(dashboard.Row(row.title).id(next(ids)))
        for panel, width in zip(row.panels, _widths(row.panels), strict=True):
            board.with_panel(_panel(panel, next(ids), width))
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _widths(panels: tuple[Panel, ...]) -> Iterator[int]:
    """Stats share one line; graphs go two or three to a line, so that every line is full."""
    left = len(panels)
    while left:
        in_line = left if panels[0].is_stat else 2 if left in (2, 4) else min(3, left)
        yield from (GRID_WIDTH // in_line,) * in_line
        left -= in_line


def _panel(panel: Panel, panel_id: int, width: int) -> stat.Panel | timeseries.Panel:
    """One panel, with ids and refIds, which the SDK leaves to the caller."""
    built = (_stat() if panel.is_stat else _graph(panel.is_stacked)).id(panel_id)
    built.title(panel.title).description(panel.description).unit(panel.unit)
    built.datasource(DATASOURCE).span(width).height(4 if panel.is_stat else 8)
    for ref_id, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend)
        built.with_target(target.ref_id(ref_id).datasource(DATASOURCE).range())
    return built


def _stat() -> stat.Panel:
    return stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def _graph(is_stacked: bool) -> timeseries.Panel:
    graph = timeseries.Panel().min(0).fill_opacity(30 if is_stacked else 0).line_width(1)
    if is_stacked:
        graph.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI)
    legend = common.VizLegendOptions().placement(common_models.LegendPlacement.BOTTOM)
    legend.display_mode(common_models.LegendDisplayMode.LIST).show_legend(True).calcs([])
    return graph.tooltip(tooltip).legend(legend)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(render())
    else:
        OUTPUT.write_text(render(), encoding="utf-8")
