"""All policies by name. A factory takes what learned policies may learn from."""

from __future__ import annotations

from collections.abc import Callable

from cachewise_bench.policies.aimd import Aimd
from cachewise_bench.policies.arc import Arc
from cachewise_bench.policies.base import Policy
from cachewise_bench.policies.belady import Belady
from cachewise_bench.policies.cachewise import CacheWise, CacheWiseOracle
from cachewise_bench.policies.continuum import Continuum
from cachewise_bench.policies.cost_lru import CostLru
from cachewise_bench.policies.fixed_ttl import FixedTtl
from cachewise_bench.policies.infercept import InferCept, InferCeptPrefix
from cachewise_bench.policies.long_prefill import LongPrefill
from cachewise_bench.policies.lpm import Lpm
from cachewise_bench.policies.ours import LearnedWait, Ours, TrueWait
from cachewise_bench.policies.plas import Plas
from cachewise_bench.policies.qilru import Qilru
from cachewise_bench.policies.rr_tail import RrTail
from cachewise_bench.policies.slru import Slru
from cachewise_bench.policies.thunder import Thunder
from cachewise_bench.policies.training import Training
from cachewise_bench.policies.vllm_prefix import VllmPrefix
from cachewise_bench.policies.wrong_waits import WRONG_WAITS, WrongWait

Factory = Callable[[Training], Policy]


def _wrong(name: str) -> Factory:
    return lambda training: Ours(WrongWait(WRONG_WAITS[name]), f"ours-{name}")


POLICIES: dict[str, Factory] = {
    "vllm": lambda training: Policy(),
    "vllm-long-prefill": lambda training: LongPrefill(),
    "lpm": lambda training: Lpm(),
    "vllm-prefix": lambda training: VllmPrefix(),
    "infercept": lambda training: InferCept(),
    "infercept-prefix": lambda training: InferCeptPrefix(),
    "cachewise-c20": lambda training: CacheWise(training, 20),
    "cachewise-c50": lambda training: CacheWise(training, 50),
    "cachewise-c100": lambda training: CacheWise(training, 100),
    "cachewise-oracle": lambda training: CacheWiseOracle(),
    "continuum": Continuum,
    "thunder": lambda training: Thunder(),
    "aimd": lambda training: Aimd(),
    "rr-tail": lambda training: RrTail(),
    "qilru": lambda training: Qilru(),
    "cost-lru": lambda training: CostLru(),
    "slru": lambda training: Slru(),
    "arc": lambda training: Arc(),
    "fixed-ttl": lambda training: FixedTtl(),
    "plas": lambda training: Plas(),
    "belady": lambda training: Belady(),
    "ours": lambda training: Ours(LearnedWait(training.model)),
    "ours-oracle": lambda training: Ours(TrueWait(), "ours-oracle"),
    "ours-no-forecast": lambda training: Ours(None, "ours-no-forecast"),
    "ours-fair": lambda training: Ours(LearnedWait(training.model), "ours-fair", preset="fair"),
    "ours-order": lambda training: Ours(None, "ours-order", mode="order"),
    **{f"ours-{name}": _wrong(name) for name in WRONG_WAITS},
}

EXPERIMENTS = frozenset(f"ours-{name}" for name in WRONG_WAITS)
"""The product with forecasts that are wrong; not part of `all`."""

ORACLES = frozenset({"cachewise-oracle", "belady", "ours-oracle"})
"""These see the future."""
