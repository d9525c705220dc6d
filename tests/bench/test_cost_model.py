from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from cachewise_bench.cost_model import Hardware
from cachewise_bench.replay_command import PRESETS
from cachewise_bench.workload import WorkloadError
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.sample_turns import session

PAPER = Hardware.load("h200x2-qwen32b")
NAMES = sorted(
    path.name.removesuffix(".toml")
    for path in (resources.files("cachewise_bench") / "hardware").iterdir()
)

each_hardware = pytest.mark.parametrize("name", NAMES)


def test_every_preset_has_its_hardware() -> None:
    assert set(PRESETS.values()) == set(NAMES)


@each_hardware
def test_a_preset_holds_the_longest_session_and_a_larger_batch_takes_longer(name: str) -> None:
    hardware = Hardware.load(name)
    assert hardware.pool_blocks * hardware.block_size > 120_000
    batches = [hardware.step_seconds([(tokens, 0)]) for tokens in range(1, 20_000, 7)]
    assert batches == sorted(batches)


@each_hardware
def test_a_swap_in_is_cheaper_than_computing_again(name: str) -> None:
    hardware = Hardware.load(name)
    swap_in_s = hardware.transfer_seconds(50_000 // hardware.block_size)
    assert 0 < swap_in_s < hardware.prefill_seconds(50_000) / 4


@pytest.mark.parametrize(("tokens", "published_s"), [(30_000, 1.9), (50_000, 3.7), (100_000, 10.2)])
def test_the_papers_hardware_prefills_in_the_published_time(
    tokens: int, published_s: float
) -> None:
    assert PAPER.prefill_seconds(tokens) == pytest.approx(published_s, rel=0.1)


def test_the_papers_hardware_swaps_in_100k_tokens_in_a_quarter_of_a_second() -> None:
    assert PAPER.transfer_seconds(100_000 // PAPER.block_size) == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize(
    ("name", "tokens", "published_ms"), [("a100-8b", 2048, 133.0), ("a100-8b", 128, 16.0)]
)
def test_an_8b_model_takes_a_little_longer_than_the_7b_model_that_was_measured(
    name: str, tokens: int, published_ms: float
) -> None:
    took_ms = 1e3 * Hardware.load(name).prefill_seconds(tokens, chunk=tokens)
    assert published_ms < took_ms < 1.25 * published_ms


def test_measured_batches_take_what_was_measured() -> None:
    hardware = replace(PAPER, host_ms=0.0)
    for tokens, ms in zip(hardware.step_tokens, hardware.step_ms, strict=True):
        assert hardware.step_seconds([(int(tokens), 0)]) == pytest.approx(ms / 1e3)
    assert hardware.step_seconds([(384, 0)]) == pytest.approx((14.5 + 24.2) / 2e3)
    assert hardware.step_seconds([(16_384, 0)]) == pytest.approx(2 * 0.381)


def test_decodes_pay_for_their_context_and_prefills_for_theirs_times_their_chunk() -> None:
    flat = replace(PAPER, step_tokens=(1.0, 2.0), step_ms=(1.0, 1.0 + 1e-12), host_ms=0.5)
    flat = replace(
        flat, decode_ms_per_context_token=1e-3, prefill_ms_per_token_and_context_token=1e-5
    )
    alone = flat.step_seconds([(1, 0)])
    assert alone == pytest.approx(1.5e-3)
    assert flat.step_seconds([(1, 4_000)]) - alone == pytest.approx(4e-3)
    assert flat.step_seconds([(2, 4_000)]) - alone == pytest.approx(2 * 4_000 * 1e-8)


@given(st.integers(0, 20), st.integers(1, 20_000))
def test_the_costs_of_two_parts_of_a_prefill_add_up(chunks: int, more: int) -> None:
    middle = 512 * chunks
    whole = PAPER.prefill_seconds(middle + more)
    parts = PAPER.prefill_seconds(middle) + PAPER.prefill_seconds(middle + more, start=middle)
    assert parts == pytest.approx(whole)


def _text(**changed: object) -> str:
    values: dict[str, object] = {
        "name": '"mine"',
        "kv_bytes_per_token": 1000,
        "pool_blocks": 100,
        "block_size": 16,
        "step_tokens": [1, 512],
        "step_ms": [1.0, 20.0],
        "decode_ms_per_context_token": 1e-5,
        "prefill_ms_per_token_and_context_token": 1e-6,
        "host_ms": 1.0,
    } | changed
    return "\n".join(f"{key} = {value}" for key, value in values.items() if value is not None)


def test_hardware_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(_text())
    hardware = Hardware.load(str(file))
    assert (hardware.name, hardware.step_tokens, hardware.pcie_gb_per_s) == ("mine", (1, 512), 25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "mine.toml: "),
        (_text(host_ms=None), "host_ms"),
        (_text(step_ms=None), "step_ms"),
        (_text(colour='"red"'), "colour"),
        (
            _text(pool_blocks='"many"'),
            "pool_blocks must be a whole number of 1 or more, not 'many'",
        ),
        (_text(pool_blocks=12.5), "pool_blocks must be a whole number"),
        (_text(block_size=0), "block_size must be a whole number of 1 or more, not 0"),
        (_text(host_ms=-1), "host_ms must be a number of 0 or more, not -1"),
        (_text(host_ms="nan"), "host_ms must be a number"),
        (_text(pcie_gb_per_s="true"), "pcie_gb_per_s must be a number"),
        (_text(step_tokens=[512, 1]), "step_tokens must ascend"),
        (_text(step_tokens=[1]), "equal lengths, 2 or more"),
        (_text(step_ms=[0, 1]), "step_ms be positive"),
        (_text(step_ms='["a", "b"]'), "could not convert"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_key(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(WorkloadError) as error:
        Hardware.load(str(file))
    assert message in str(error.value)


def test_unknown_hardware_is_an_error_that_lists_what_there_is() -> None:
    with pytest.raises(WorkloadError, match="no hardware 'tpu'.*" + ", ".join(NAMES)):
        Hardware.load("tpu")


def test_a_session_that_the_pool_cannot_hold_is_named_with_the_blocks_that_it_needs() -> None:
    hardware = replace(PAPER, pool_blocks=200)
    with pytest.raises(WorkloadError, match="session long needs 195 blocks and the pool of"):
        replace(hardware, pool_blocks=195).check_holds([session("long", 500, 3_000)])
    hardware.check_holds([session("short", 1_000), session("long", 500, 3_000)])
