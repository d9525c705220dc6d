"""What people are told about a forecast and about the clusters."""

from __future__ import annotations

import pytest
from cachewise_predictor.events import ToolCall
from cachewise_predictor.insight import clusters, explain
from cachewise_predictor.model import Model

from .conftest import interval


def trained() -> Model:
    intervals = [
        interval(wait_s + n / 100, ToolCall("Bash", f'{{"command": "{command} {n}"}}'))
        for n in range(60)
        for command, wait_s in (("pytest -x tests/unit", 30.0), ("git status --short", 0.1))
    ]
    return Model.fit(intervals).learn(intervals)


def test_a_forecast_is_explained_from_the_prior_to_the_command() -> None:
    model = trained()
    text = explain(model, "acme", "Bash", "pytest -x tests/unit 7")
    names = [line.split()[0] for line in text.splitlines()[6:] if line]
    assert names[:5] == ["prior", "all", "tenant", "kind", "cluster"]
    assert "source: cluster, 60 intervals" in text
    assert "pytest" in text and "action pytest" in text
    assert text == explain(model, "acme", "Bash", '{"command": "pytest -x tests/unit 7"}')


def test_without_data_the_prior_explains_itself() -> None:
    assert "source: prior, 0 intervals" in explain(Model(), "acme", "Bash", "")


@pytest.mark.parametrize("arguments", ["", "x" * 1_000_000, "\x00\x1b[31m", "\ud800", "é" * 500])
def test_any_arguments_can_be_explained(arguments: str) -> None:
    text = explain(trained(), "acme", "Bash", arguments)
    assert text.replace("\n", "").isprintable()


def test_secrets_are_not_echoed() -> None:
    text = explain(trained(), "acme", "Bash", "curl -H 'Authorization: Bearer abcdefgh12345'")
    assert "abcdefgh" not in text


def test_clusters_are_listed_with_terms_and_waits() -> None:
    lines = clusters(trained()).splitlines()[1:]
    assert len(lines) >= 2
    slow = next(line for line in lines if "pytest" in line)
    assert slow.startswith("acme Bash ") and float(slow.split()[4]) > 10


def test_a_model_without_clusters_says_what_to_do() -> None:
    assert "cachewise-predictor train" in clusters(Model())
