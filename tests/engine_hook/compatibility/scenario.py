"""One scenario, played to vLLM's own scheduler and to CacheWise's over the same checked worker."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cachewise_engine_hook.identity import hash_session
from cachewise_engine_hook.policy import Forecast
from cachewise_engine_hook.scheduler import CacheWiseScheduler
from cachewise_engine_hook.sessions import ForecastUpdate
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from ..vllm_scheduler import make_request, make_scheduler
from .worker import Worker, answer

STEP_S = 0.1
Action = Callable[[Any], None]
"""Something that happens to a scheduler between two steps."""


@dataclass(frozen=True)
class Turn:
    """One request of an agent. step: when it arrives."""

    step: int
    name: str
    prompt: list[int]
    answer_length: int
    session: str
    more: Mapping[str, Any] = field(default_factory=dict)

    def expected(self) -> list[int]:
        adapter = self.more.get("lora_request")
        return answer(self.prompt, self.answer_length, adapter.lora_int_id if adapter else 0)


@dataclass
class Played:
    """What a scheduler made of a scenario."""

    scheduler: Any
    scheduled: list[dict[str, int]] = field(default_factory=list)
    """Tokens of each request, in order, by step."""
    handed_out: list[int] = field(default_factory=list)
    """Every block that was given to a request, in order."""
    answers: dict[str, list[int]] = field(default_factory=dict)
    preemptions: int = 0

    @property
    def steps(self) -> list[list[tuple[str, int]]]:
        """As scheduled, up to the last that did something."""
        last = max((i for i, counts in enumerate(self.scheduled) if counts), default=-1)
        return [list(counts.items()) for counts in self.scheduled[: last + 1]]

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool


def agents(
    seed: int, sessions: int = 4, turns: int = 5, most_tokens: int = 70, **more: Any
) -> list[Turn]:
    """Sessions whose prompts grow by their answers and something new; some share a beginning."""
    rng = random.Random(seed)
    made, shared = [], [rng.randrange(250) for _ in range(50)]
    for number in range(sessions):
        context = list(shared) if number % 2 else []
        step = rng.randint(0, 20)
        for turn in range(turns):
            context += [rng.randrange(250) for _ in range(rng.randint(5, most_tokens))]
            new = Turn(
                step, f"s{number}.{turn}", list(context), rng.randint(1, 30), f"s{number}", more
            )
            made.append(new)
            context += new.expected()
            step += rng.randint(2, 30)
    return sorted(made, key=lambda t: (t.step, t.name))


def play(
    scheduler: Any,
    turns: Iterable[Turn],
    actions: Mapping[int, Action] | None = None,
    transfers: Any = None,
    *,
    with_sessions: bool = True,
    most_steps: int = 5_000,
) -> Played:
    """Until all is done. Async scheduling plans one step ahead of the worker, as vLLM does."""
    played, worker = Played(scheduler), Worker(scheduler, transfers)
    _record_blocks(played)
    ahead = 1 if isinstance(scheduler, AsyncScheduler) else 0
    arrivals, actions = deque(turns), dict(actions or {})
    in_flight: deque[Any] = deque()
    for step in range(most_steps):
        scheduler.clock = lambda now=step * STEP_S: now
        while arrivals and arrivals[0].step <= step:
            _arrive(scheduler, arrivals.popleft(), with_sessions, len(arrivals))
        if action := actions.pop(step, None):
            action(scheduler)
        plan = scheduler.schedule()
        played.scheduled.append(dict(plan.num_scheduled_tokens))
        played.preemptions += len(plan.preempted_req_ids or ())
        in_flight.append((plan, worker.execute(plan)))
        while len(in_flight) > ahead or (in_flight and not plan.num_scheduled_tokens):
            _deliver(played, *in_flight.popleft())
        _check_the_free_queue(played.pool)
        if not (arrivals or actions or in_flight or scheduler.has_requests()):
            return played
    raise AssertionError(f"not done after {most_steps} steps: {scheduler.requests.keys()}")


def both(asynchronous: bool = False, **options: Any) -> tuple[Any, Any]:
    """vLLM's scheduler and CacheWise's, with the same options."""
    stock = make_scheduler(
        AsyncScheduler if asynchronous else Scheduler, asynchronous=asynchronous, **options
    )
    return stock, ours(asynchronous, **options)


def ours(asynchronous: bool = False, **options: Any) -> Any:
    scheduler = make_scheduler(CacheWiseScheduler, asynchronous=asynchronous, **options)
    return scheduler


def assert_same(stock: Played, ours: Played) -> None:
    """Without sessions and in the order of priority not a step may differ, and not a block."""
    assert ours.steps == stock.steps
    assert ours.handed_out == stock.handed_out
    assert ours.answers == stock.answers
    assert_all_is_given_back(ours)


def assert_sound(played: Played, turns: Iterable[Turn], aborted: Iterable[str] = ()) -> None:
    """Every answer is the model's, and nothing is left behind."""
    aborted = set(aborted)
    for turn in turns:
        given, expected = played.answers.get(turn.name, []), turn.expected()
        assert given == (expected[: len(given)] if turn.name in aborted else expected), turn.name
    assert_all_is_given_back(played)


def assert_all_is_given_back(played: Played) -> None:
    pool = played.pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    if (hook := getattr(played.scheduler, "_hook", None)) is not None:
        assert not len(hook.requests)
        assert all(not session.active_requests for session in hook.sessions.snapshot())
        assert len(played.scheduler.waiting) == 0


def foresee(seed: int, sessions: int = 4, steps: int = 400) -> dict[int, Action]:
    """Forecasts that come now and then, for whoever is away; they mean nothing."""
    rng = random.Random(seed)

    def tell(session: str, remaining_s: float) -> Action:
        def action(scheduler: Any) -> None:
            hook, key = scheduler._hook, hash_session(session, "")
            curve = Forecast((0.0, 10.0), (remaining_s, remaining_s))
            hook.take_forecast(ForecastUpdate(key, scheduler.clock(), curve))

        return action

    return {
        step: tell(f"s{rng.randrange(sessions)}", rng.choice([0.5, 5.0, 500.0]))
        for step in range(rng.randint(0, 9), steps, 7)
    }


def together(*all_actions: Mapping[int, Action]) -> dict[int, Action]:
    """Actions of several mappings, those of one step one after the other."""
    by_step: dict[int, list[Action]] = {}
    for actions in all_actions:
        for step, action in actions.items():
            by_step.setdefault(step, []).append(action)

    def all_of(actions: list[Action]) -> Action:
        def action(scheduler: Any) -> None:
            for each in actions:
                each(scheduler)

        return action

    return {step: all_of(actions) for step, actions in by_step.items()}


def _arrive(scheduler: Any, turn: Turn, with_sessions: bool, left: int) -> None:
    request = make_request(
        turn.name,
        turn.prompt,
        turn.answer_length,
        turn.session if with_sessions else None,
        arrival_time=1e6 - left,
        **({"priority": -left} | dict(turn.more)),
    )
    scheduler.add_request(request)


def _deliver(played: Played, plan: Any, output: Any) -> None:
    for outputs in played.scheduler.update_from_output(plan, output).values():
        for one in outputs.outputs:
            played.answers.setdefault(one.request_id, []).extend(one.new_token_ids)


def _record_blocks(played: Played) -> None:
    pool = played.pool
    get = pool.get_new_blocks

    def recorded(count: int) -> Any:
        blocks = get(count)
        played.handed_out += [block.block_id for block in blocks]
        return blocks

    pool.get_new_blocks = recorded


def _check_the_free_queue(pool: Any) -> None:
    free = Counter(block.block_id for block in pool.free_block_queue.get_all_free_blocks())
    assert sum(free.values()) == pool.free_block_queue.num_free_blocks
    assert free.keys() == {b.block_id for b in pool.blocks if b.ref_cnt == 0 and not b.is_null}
    assert max(free.values(), default=1) == 1
