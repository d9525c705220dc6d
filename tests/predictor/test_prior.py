"""The built-in curves say what was published."""

import pytest
from cachewise_predictor import prior, survival
from cachewise_predictor.events import Wait


@pytest.mark.parametrize(
    ("hazard", "p50", "p90", "p99"),
    [
        (prior.WAITS[Wait.TOOL], 0.3, 13.6, 216),
        (prior.WAITS[Wait.HUMAN], 86, 20.6 * 60, 13.9 * 3_600),
        (prior.tool_hazards("Bash"), 0.409, None, 235),
        (prior.tool_hazards("Read"), 0.036, None, None),
        (prior.tool_hazards("Edit"), 0.095, None, None),
        (prior.tool_hazards("Task"), None, None, 600),
    ],
)
def test_quantiles_are_the_published_ones(
    hazard: survival.Floats, p50: float | None, p90: float | None, p99: float | None
) -> None:
    curve = survival.log_survival(hazard)
    for probability, published in ((0.5, p50), (0.9, p90), (0.99, p99)):
        if published is not None:
            assert survival.quantile(curve, probability) == pytest.approx(published, rel=0.2)


@pytest.mark.parametrize(("tool", "mean_s"), [("Task", 63), ("WebFetch", 24)])
def test_means_are_the_published_ones(tool: str, mean_s: float) -> None:
    curve = survival.log_survival(prior.tool_hazards(tool))
    assert survival.remaining(curve, power=1)[0] == pytest.approx(mean_s, rel=0.15)


def test_a_tool_that_nothing_is_known_about_has_the_overall_curve() -> None:
    assert prior.tool_hazards("mcp__db__query") is prior.OVERALL
