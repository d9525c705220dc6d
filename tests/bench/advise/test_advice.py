from __future__ import annotations

from typing import Any

import pytest
from cachewise_bench.advise.advice import (
    ACTIVE_SET,
    ALL_OFFLOADED,
    FORECASTS,
    LEVERS,
    ORDER,
    STOCK,
    STOCK_OFFLOADED,
    Advice,
    Lever,
    Traffic,
    advise,
)

TRAFFIC = Traffic("2xH200", 750_000, (100_000, 50_000), turns=90)


def row(session_s: float, recompute: float = 1.0, refilled: int = 0, **more: float) -> Any:
    return {
        "session_time_mean_s": session_s,
        "recompute_ratio": recompute,
        "refilled_blocks": refilled,
        "evicted_blocks": 2 * refilled,
        "request_p99_s": 10.0,
        "max_wait_s": 20.0,
    } | more


def fits(session_s: float = 100.0) -> dict[Lever, Any]:
    return {lever: row(session_s) for lever in LEVERS}


def thrashes(*seconds: float, **ours: float) -> dict[Lever, Any]:
    """Seconds of stock vLLM and of each lever."""
    made = {lever: row(s, 3.5, 1_000) for lever, s in zip(LEVERS, seconds, strict=True)}
    made[FORECASTS] |= ours
    return made


def advice(**levels: dict[Lever, Any]) -> Advice:
    """n5=… is what was measured with five sessions at once."""
    rows = [
        (int(name[1:]), lever, figures)
        for name, levers in levels.items()
        for lever, figures in levers.items()
    ]
    return advise(TRAFFIC, rows)


def test_where_all_contexts_fit_the_advice_is_to_leave_it_off() -> None:
    made = advice(n2=fits(), n5=fits())
    assert made.sentences()[0] == (
        "Leave it off: the contexts of 5 sessions at once all fit into the pool, so there is "
        "nothing to gain."
    )
    assert (made.fits_up_to, made.thrashes_from, made.pays_at) == (5, None, [])
    assert len(made.sentences()) == 3


def test_where_no_lever_helps_the_advice_is_to_leave_it_off_too() -> None:
    made = advice(n5=fits(), n20=thrashes(100, 99, 99, 99))
    assert made.sentences()[0].startswith("Leave it off: with up to 20 sessions at once")
    assert "no faster and no slower" in made.sentences()[0]


def test_it_says_from_how_many_sessions_on_it_pays() -> None:
    made = advice(n5=fits(), n10=thrashes(400, 200, 110, 100), n20=thrashes(900, 500, 310, 300))
    assert made.sentences()[0] == (
        "Turn it on from 10 sessions at once; leave it off where at most 5 run at once, where it "
        "makes a session no faster and no slower."
    )
    assert (made.fits_up_to, made.thrashes_from, made.pays_at) == (5, 10, [10, 20])


def test_it_pays_from_the_fewest_sessions_that_were_tried() -> None:
    made = advice(n20=thrashes(900, 500, 310, 300))
    assert made.sentences()[0].startswith("Turn it on: it pays from 20 sessions at once on")


def test_a_gain_that_comes_and_goes_is_said_to() -> None:
    made = advice(n10=thrashes(400, 200, 110, 100), n20=thrashes(400, 390, 390, 390))
    assert made.sentences()[0] == "It pays at 10 sessions at once, and not at 20: try it."


def test_it_says_what_fits_and_when_the_pool_thrashes() -> None:
    text = " ".join(advice(n5=fits(), n10=thrashes(400, 200, 110, 100)).sentences())
    assert "2 sessions with 90 turns were replayed on 2xH200." in text
    assert "holds 750,000 tokens, about 10 of these sessions at their largest (75,000" in text
    assert "Up to 5 sessions at once all contexts fit. From 10 sessions at once on the pool" in text
    assert "computes 3.5 tokens for each new one and evicts 2,000 blocks" in text


def test_a_pool_that_is_short_but_does_not_thrash_is_called_so() -> None:
    short = {lever: row(100, 1.3, 50) for lever in LEVERS}
    text = " ".join(advice(n5=short).sentences())
    assert "does not thrash with up to 5 sessions at once: stock vLLM computes 1.30" in text


def test_each_lever_is_told_by_its_seconds_and_its_gain() -> None:
    said = advice(n10=thrashes(400, 200, 125, 100)).sentences()
    assert (
        "With 10 sessions at once a session takes stock vLLM 400 s; the prefix-aware order alone "
        "200 s (2.00×), the active set as well 125 s (3.20×), forecasts as well 100 s (4.00×)."
    ) in said


@pytest.mark.parametrize(
    ("without", "advised"),
    [(125.0, "Run the predictor: with 10 sessions at once its forecasts make a session 1.25 times"),
     (101.0, "You can do without the predictor: with 10 sessions"),
     (90.0, "You can do without the predictor: with 10 sessions at once its forecasts make a "
            "session 1.11 times slower")],
)  # fmt: skip
def test_the_predictor_is_advised_by_what_its_forecasts_bring(without: float, advised: str) -> None:
    said = advice(n10=thrashes(400, 200, without, 100)).sentences()
    assert any(sentence.startswith(advised) for sentence in said)


def test_what_gets_worse_is_the_price() -> None:
    made = advice(n10=thrashes(400, 200, 125, 100, request_p99_s=9.0, max_wait_s=35.0))
    assert made.sentences()[-1] == (
        "The price with 10 sessions at once: the longest wait 20.0 → 35.0 s."
    )


def test_host_memory_is_one_more_lever() -> None:
    levels = thrashes(400, 200, 125, 100) | {STOCK_OFFLOADED: row(160), ALL_OFFLOADED: row(80)}
    assert (
        "With 10 sessions at once and host memory for evicted blocks: stock vLLM with host memory "
        "160 s (2.50×), all levers with host memory 80.0 s (5.00×)."
    ) in advice(n10=levels).sentences()


def test_the_json_holds_the_figures_behind_the_sentences() -> None:
    result = advice(n5=fits(), n10=thrashes(400, 200, 125, 100)).as_json()
    assert result["figures"][10][ORDER.key]["session_time_mean_s"] == 200
    assert result["figures"][10].keys() == {lever.key for lever in LEVERS}
    assert result["thrashes_from"] == 10 and result["pays_at"] == [10]
    assert result["sentences"][0].startswith("Turn it on")


def test_levers_add_up_in_their_order() -> None:
    assert [lever.policy for lever in (STOCK, ORDER, ACTIVE_SET, FORECASTS)] == [
        "vllm", "ours-order", "ours-no-forecast", "ours",
    ]  # fmt: skip
