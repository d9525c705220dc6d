from __future__ import annotations

import math

import pytest
from cachewise_engine_hook.policy import Forecast
from hypothesis import given
from hypothesis import strategies as st

curves = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(1e-3, 1e5), min_size=n - 1, max_size=n - 1, unique=True),
        st.lists(st.floats(0, 1e6), min_size=n, max_size=n),
    )
)


@given(curves, st.floats(-10, 1e9))
def test_the_remaining_wait_is_finite_and_not_negative_at_every_moment(curve, elapsed) -> None:
    forecast = Forecast((0.0, *sorted(curve[0])), tuple(curve[1]))
    assert 0 <= forecast.remaining(elapsed) < math.inf


@given(curves)
def test_the_curve_goes_through_its_points(curve) -> None:
    forecast = Forecast((0.0, *sorted(curve[0])), tuple(curve[1]))
    for elapsed, remaining in zip(forecast.elapsed_s, forecast.remaining_s, strict=True):
        assert forecast.remaining(elapsed) == pytest.approx(remaining)


@given(curves, st.floats(1, 1e3), st.floats(1.01, 1e3))
def test_beyond_its_end_a_hung_tool_only_becomes_more_evictable(curve, first, factor) -> None:
    """Case 11 of the public faults: never "returns now" beyond the longest sample."""
    forecast = Forecast((0.0, *sorted(curve[0])), tuple(curve[1]))
    end = forecast.elapsed_s[-1] * first
    later = forecast.remaining(end * factor)
    assert later >= forecast.remaining(end)
    assert later >= forecast.remaining_s[-1]


@given(curves, st.floats(-10, 1e6), st.floats(0, 1e4), st.floats(0, 1))
def test_the_most_of_a_span_is_not_exceeded_in_it_and_is_reached(curve, start, span, share) -> None:
    forecast = Forecast((0.0, *sorted(curve[0])), tuple(curve[1]))
    most = forecast.most_remaining(start, start + span)
    assert forecast.remaining(start + share * span) <= most * (1 + 1e-12) + 1e-9
    inside = [x for x in forecast.elapsed_s if start <= x <= start + span]
    assert most == max(forecast.remaining(x) for x in (start, start + span, *inside))


@pytest.mark.parametrize(
    ("elapsed", "remaining"),
    [
        ((), ()),
        ((0.0,), (1.0, 2.0)),
        ((1.0,), (1.0,)),
        ((0.0, 2.0, 2.0), (1.0, 1.0, 1.0)),
        ((0.0, 1.0), (1.0, -1.0)),
        ((0.0, 1.0), (1.0, math.nan)),
        ((0.0, math.inf), (1.0, 1.0)),
        ((0.0, math.nan), (1.0, 1.0)),
    ],
)
def test_what_is_no_curve_is_refused(elapsed, remaining) -> None:
    with pytest.raises(ValueError, match="forecast"):
        Forecast(elapsed, remaining)
