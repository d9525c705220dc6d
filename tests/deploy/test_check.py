"""The deployment files pass their checks, and the checks find what they are for."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cachewise_predictor.metrics import Metrics
from prometheus_client import CollectorRegistry

ROOT = Path(__file__).resolve().parents[2]


def run_check(name: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, root / "deploy" / "check.py", name]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The checked files in a folder of their own, to be broken."""
    for name in ("docker-compose.yml", "services/predictor/Dockerfile"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    return tmp_path


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize("name", ["compose", "dockerfiles", "dashboard", "prometheus"])
def test_the_committed_files_pass(name: str) -> None:
    done = run_check(name)
    assert done.returncode == 0, done.stdout + done.stderr
    if "skipped" in done.stdout:
        pytest.skip(done.stdout.strip())


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "complaint"),
    [
        (
            "compose",
            "docker-compose.yml",
            "networks: [cachewise]",
            "networks: [nowhere]",
            "nowhere",
        ),
        ("compose", "docker-compose.yml", "redis:7.2-bookworm", "redis", "pin the tag"),
        ("compose", "docker-compose.yml", "redis:7.2-bookworm", "redis:latest", "pin the tag"),
        ("compose", "docker-compose.yml", "${GRAFANA_PORT:-3000}", "${GRAFANA_PORT}", "no default"),
        (
            "dockerfiles",
            "services/predictor/Dockerfile",
            "bookworm",
            "bookworm\nRUN cd /",
            "DL3003",
        ),
        ("dashboard", "deploy/grafana/panels.py", '"Hit rate"', '"Hits"', "is old"),
        (
            "dashboard",
            "deploy/grafana/dashboards/cachewise.json",
            '"range": true',
            '"rnge": 1',
            "rnge",
        ),
        ("prometheus", "deploy/prometheus/prometheus.yml", "job_name", "job", "job"),
        ("prometheus", "deploy/prometheus/rules.yml", "== 0", "== 7", "CacheWiseTargetDown"),
    ],
)
def test_a_broken_file_is_reported(
    copied: Path, name: str, file: str, old: str, new: str, complaint: str
) -> None:
    replace(copied / file, old, new)
    done = run_check(name, copied)
    if "skipped" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 1
    assert complaint in done.stdout


def test_prometheus_scrapes_ports_that_the_compose_file_gives() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    targets = {
        job["job_name"]: job["static_configs"][0]["targets"][0] for job in config["scrape_configs"]
    }
    engines = [compose["services"][name] for name in ("engine-cpu", "engine-gpu")]
    for engine in engines:
        assert engine["networks"]["cachewise"]["aliases"] == ["engine"]
        metrics_port = engine["environment"]["CACHEWISE_METRICS_PORT"]
        assert targets["scheduler"] == f"engine:{metrics_port}"
        assert engine["environment"]["CACHEWISE_METRICS_HOST"] == "0.0.0.0"
        assert f"--port={targets['vllm'].rpartition(':')[2]}" in engine["command"]
    assert (
        f"--http=0.0.0.0:{targets['predictor'].rpartition(':')[2]}"
        in (compose["services"]["predictor"]["command"])
    )


def test_compose_sets_only_settings_that_the_hook_has() -> None:
    config = (ROOT / "services/engine_hook/cachewise_engine_hook/config.py").read_text("utf-8")
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    for name in ("engine-cpu", "engine-gpu"):
        for variable in compose["services"][name]["environment"]:
            if variable.startswith("CACHEWISE_"):
                field = variable.removeprefix("CACHEWISE_").lower()
                assert re.search(rf"^    {field}: ", config, re.MULTILINE), variable


def test_grafana_knows_the_scrape_interval() -> None:
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    provisioned = ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml"
    datasource = yaml.safe_load(provisioned.read_text("utf-8"))["datasources"][0]
    assert datasource["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]


def test_every_cachewise_metric_of_dashboard_and_rules_is_exported_by_our_code() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "services/engine_hook").glob("cachewise_*/*metrics.py")
    )
    rules = (ROOT / "deploy/prometheus/rules.yml").read_text(encoding="utf-8")
    names = set(re.findall(r"\bcachewise_\w+", dashboard_queries() + rules))
    assert len(names) > 25
    for name in names - of_predictor():
        stem = re.sub(r"^cachewise_(predictor_)?|(_total|_bucket)$", "", name)
        assert re.search(rf"\b\w*{stem}", sources), f"{name} is in no metrics.py"


def test_every_metric_of_the_predictor_is_on_the_dashboard() -> None:
    """Events are there as the engines count them; which model serves is on its own page."""
    missing = of_predictor() - set(re.findall(r"\bcachewise_\w+", dashboard_queries()))
    assert missing == {"cachewise_predictor_events_total", "cachewise_predictor_model_info"}


def dashboard_queries() -> str:
    board = json.loads((ROOT / "deploy/grafana/dashboards/cachewise.json").read_text("utf-8"))
    return " ".join(
        target["expr"] for panel in board["panels"] for target in panel.get("targets", ())
    )


def of_predictor() -> set[str]:
    """Names of its metrics, as queries name them."""
    registry = CollectorRegistry()
    Metrics(registry)
    suffixes = {"counter": "_total", "histogram": "_bucket", "info": "_info"}
    return {family.name + suffixes.get(family.type, "") for family in registry.collect()}
