"""LoRA: the same text under another adapter is another prefix, and few adapters fit in a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm.config import LoRAConfig
from vllm.lora.request import LoRARequest

from ..vllm_scheduler import make_request, run
from .scenario import Turn, agents, assert_same, assert_sound, both, foresee, ours, play
from .worker import answer

both_bases = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
seeds = pytest.mark.parametrize("seed", range(3))
ADAPTERS = [LoRARequest(name, number, "nowhere") for number, name in enumerate("ab", start=1)]


def options(**more: Any) -> dict[str, Any]:
    return {"num_blocks": 40, "lora_config": LoRAConfig(max_loras=1, max_cpu_loras=2)} | more


def adapted(seed: int) -> list[Turn]:
    """The agents' sessions, every one for each adapter: all prompts occur twice."""
    made = []
    for adapter in ADAPTERS:
        contexts: dict[str, int] = {}
        for turn in agents(seed, sessions=2, turns=4):
            contexts[turn.session] = turn.step
            made.append(
                replace(
                    turn,
                    name=f"{turn.name}{adapter.name}",
                    session=f"{turn.session}{adapter.name}",
                    more={"lora_request": adapter},
                )
            )
    return sorted(made, key=lambda t: (t.step, t.name))


@both_bases
@seeds
def test_without_sessions_nothing_differs_from_stock(asynchronous: bool, seed: int) -> None:
    turns = adapted(seed)
    stock, mine = (
        play(scheduler, turns, with_sessions=False)
        for scheduler in both(asynchronous, **options(policy="priority"))
    )
    assert_same(stock, mine)


@both_bases
@seeds
def test_no_session_gets_another_adapters_blocks(asynchronous: bool, seed: int) -> None:
    turns = adapted(seed)
    played = play(ours(asynchronous, **options()), turns, foresee(seed))
    assert_sound(played, turns)


def test_a_prefix_is_resident_for_its_own_adapter_only() -> None:
    scheduler, (one, other) = ours(**options()), ADAPTERS
    prompt = [7] * 160
    scheduler.add_request(make_request("first", prompt, session="s", lora_request=one))
    run(scheduler)
    longer = prompt + answer(prompt, 1, 1)
    again = make_request("again", longer, session="s", lora_request=one)
    foreign = make_request("foreign", longer, session="t", lora_request=other)
    assert scheduler._missing_blocks(again) == 1
    assert scheduler._missing_blocks(foreign) == 11
