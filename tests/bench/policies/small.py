"""Small sessions on a pool that holds only some of them: what the tests of the policies replay."""

from __future__ import annotations

import random
from dataclasses import replace

from cachewise_bench.cost_model import Hardware
from cachewise_bench.policies.catalogue import POLICIES
from cachewise_bench.policies.training import Training
from cachewise_bench.replay import Outcome, Replay
from cachewise_bench.workload import Session, ToolCall, Turn

BLOCK = 16
POOL_BLOCKS = 300
CHUNK = 512


def small_sessions(count: int = 6, turns: int = 7, seed: int = 0) -> list[Session]:
    """Contexts that grow from about 70 to about 190 blocks; a person answers now and then."""
    chance = random.Random(seed)
    sessions = []
    for i in range(count):
        prompt, made = chance.randrange(800, 1400), []
        for turn in range(turns):
            output = chance.randrange(16, 64)
            made.append(_turn(chance, prompt, output, by_person=turn % 5 == 4))
            prompt += output + chance.randrange(50, 400)
        sessions.append(Session(f"small/{i}", tuple(made)))
    return sessions


def _turn(chance: random.Random, prompt: int, output: int, by_person: bool) -> Turn:
    if by_person:
        return Turn(prompt, output, (), chance.uniform(1, 9))
    name, command, mean_s = chance.choice(
        [("Bash", "pytest -q", 3.0), ("Bash", "git status", 0.2), ("Read", "a.py", 0.05)]
    )
    call = ToolCall(name, f'{{"command": "{command} {chance.randrange(9)}"}}')
    return Turn(prompt, output, (call,), chance.expovariate(1 / mean_s))


def in_fixed_order(sessions: list[Session]) -> list[Session]:
    """The same with waits so long and so different that no policy can change who comes when."""
    chance = random.Random(1)
    return [
        replace(
            session,
            turns=tuple(replace(turn, wait_s=chance.uniform(1e3, 1e6)) for turn in session.turns),
        )
        for session in sessions
    ]


def hardware(pool_blocks: int = POOL_BLOCKS) -> Hardware:
    return replace(Hardware.load("h200x2-qwen32b"), pool_blocks=pool_blocks)


TRAINING = Training(tuple(small_sessions(count=40, seed=99)))


def prepared(name: str, sessions: list[Session], pool_blocks: int = POOL_BLOCKS) -> Replay:
    """A replay of the sessions under the policy of that name, not yet run."""
    return Replay(sessions, POLICIES[name](TRAINING), hardware(pool_blocks), CHUNK)


def outcome(name: str, sessions: list[Session], pool_blocks: int = POOL_BLOCKS) -> Outcome:
    return prepared(name, sessions, pool_blocks).run()
