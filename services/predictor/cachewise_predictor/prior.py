"""What is known about waits before there is any data: published statistics, as survival curves.

Each curve is given by a few points (wait in seconds, share of the waits that are longer), joined
by powers of time and continued by the last power, but at least 1 (so that the tail is no heavier
than the overall one).

Sources: TraceLab (arXiv 2606.30560; 432,510 tool calls): all calls P50 0.3 s, P90 13.6, P99 216,
over 1/10/60 s 39/12/4 %; Bash P50 0.409 s, shell P99 235; Read P50 0.036; Edit P50 0.095; subagent
tasks mean 63 s, P99 600; web mean 24 s; human pauses P50 86 s, P90 20.6 min, P99 13.9 h. Where it
gives no P90, the point below is chosen to meet the mean or the mix.
"""

from __future__ import annotations

import numpy as np

from .events import Wait
from .survival import GRID_S, Floats

_Points = tuple[tuple[float, float], ...]

_OVERALL: _Points = (
    (0.3, 0.5),
    (1.0, 0.39),
    (10.0, 0.12),
    (13.6, 0.1),
    (60.0, 0.04),
    (216.0, 0.01),
)
_HUMAN: _Points = ((86.0, 0.5), (1_236.0, 0.1), (50_040.0, 0.01))
_SHELL: _Points = ((0.409, 0.5), (15.0, 0.1), (60.0, 0.045), (235.0, 0.01))
_READ: _Points = ((0.036, 0.5), (0.4, 0.1), (2.0, 0.01))
_EDIT: _Points = ((0.095, 0.5), (1.0, 0.1), (30.0, 0.01))
_WEB: _Points = ((10.0, 0.5), (60.0, 0.1), (200.0, 0.01))
_SUBAGENT: _Points = ((20.0, 0.5), (170.0, 0.1), (600.0, 0.01))

_TOOLS: dict[str, _Points] = (
    dict.fromkeys(
        ("bash", "shell", "exec", "exec_command", "powershell", "local_shell", "run"), _SHELL
    )
    | dict.fromkeys(("read", "grep", "glob", "ls", "list", "view", "read_file"), _READ)
    | dict.fromkeys(("edit", "multiedit", "write", "notebookedit", "apply_patch"), _EDIT)
    | dict.fromkeys(("webfetch", "websearch", "web_search", "web_fetch"), _WEB)
    | dict.fromkeys(("task", "agent", "subagent", "spawn_agent"), _SUBAGENT)
    | dict.fromkeys(("askuserquestion", "exitplanmode", "request_user_input"), _HUMAN)
)


def _hazards(points: _Points) -> Floats:
    """Hazards per bin of the curve through the points; linear from (0, 1) to the first one."""
    times = np.array([t for t, _ in points])
    log_share = np.log([share for _, share in points])
    slopes = np.append(np.diff(log_share) / np.diff(np.log(times)), -1.0)
    slopes[-1] = min(slopes[-2], -1.0)
    with np.errstate(divide="ignore"):
        log_grid = np.log(GRID_S)
    index = np.clip(np.searchsorted(times, GRID_S, side="right") - 1, 0, None)
    curve = log_share[index] + slopes[index] * (log_grid - np.log(times[index]))
    body = np.log1p(-(1 - points[0][1]) * np.minimum(GRID_S / times[0], 1))
    curve = np.where(log_grid <= np.log(times[0]), body, curve)
    return np.asarray(-np.expm1(np.diff(curve)))


OVERALL = _hazards(_OVERALL)

WAITS: dict[Wait, Floats] = {
    Wait.TOOL: OVERALL,
    Wait.HUMAN: _hazards(_HUMAN),
    Wait.LENGTH: OVERALL,  # the client asks for the rest, or works with what it has
    Wait.ABORTED: _hazards(_HUMAN),  # most aborts are a person pressing Esc
}

_BY_TOOL = {name: _hazards(points) for name, points in _TOOLS.items()}


def tool_hazards(name: str) -> Floats:
    """The published curve of this kind of tool; the overall one if its name says nothing."""
    return _BY_TOOL.get(name.lower().split(":")[0], OVERALL)
