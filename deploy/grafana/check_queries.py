"""Runs every query of the dashboard against a live Prometheus.

Prints, for each panel and expression, the number of series that had a real value in the last
minutes. Exit status 1 if any query had none: a panel that stays empty under load is broken, or its
metric is named otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

DASHBOARD = Path(__file__).parent / "dashboards" / "cachewise.json"
STEP_S = 5
TIMEOUT_S = 30


def queries(dashboard: dict[str, object]) -> Iterator[tuple[str, str]]:
    """(panel title, expression) of every target, as written in the dashboard."""
    panels = dashboard["panels"]
    assert isinstance(panels, list)
    for panel in panels:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def filled_in(expr: str, minutes: float) -> str:
    """The expression with Grafana's variables set as for a view of the last minutes."""
    expr = expr.replace("$__rate_interval", "1m")
    return expr.replace("$__range", f"{round(minutes * 60)}s")


def series_with_data(prometheus: str, expr: str, minutes: float) -> int:
    """How many series of the expression had a number other than NaN in the last minutes.

    Raises urllib.error.HTTPError if Prometheus refuses the expression.
    """
    end = time.time()
    span = {"query": expr, "start": end - minutes * 60, "end": end, "step": STEP_S}
    url = f"{prometheus.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(span)}"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        result = json.load(response)["data"]["result"]
    return sum(any(math.isfinite(float(v)) for _, v in series["values"]) for series in result)


def main() -> int:
    """Checks all queries and prints one line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--minutes", type=float, default=5, help="how far back to look (default 5)")
    args = parser.parse_args()
    empty = total = 0
    for title, expr in queries(json.loads(DASHBOARD.read_text(encoding="utf-8"))):
        try:
            count = series_with_data(args.prometheus, filled_in(expr, args.minutes), args.minutes)
        except urllib.error.HTTPError as refused:
            sys.exit(f"{title}: Prometheus refuses {expr}: {refused.read().decode()}")
        except OSError as error:
            sys.exit(f"no Prometheus answers at {args.prometheus}: {error}")
        total += 1
        empty += count == 0
        print(f"{count or 'EMPTY':>5}  {title}: {expr}")
    print(f"{total} queries, {empty} without data")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
