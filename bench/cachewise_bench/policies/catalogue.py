"""All policies by name. A factory takes what learned policies may learn from."""

from __future__ import annotations

from collections.abc import Callable

from cachewise_engine_hook.policy import Forecast
from cachewise_predictor.events import ToolCall, Wait

from cachewise_bench.policies.aimd import Aimd
from cachewise_bench.policies.arc import Arc
from cachewise_bench.policies.base import Away, Policy
from cachewise_bench.policies.belady import Belady
from cachewise_bench.policies.cachewise import CacheWise, CacheWiseOracle
from cachewise_bench.policies.continuum import Continuum
from cachewise_bench.policies.cost_lru import CostLru
from cachewise_bench.policies.fixed_ttl import FixedTtl
from cachewise_bench.policies.infercept import InferCept, InferCeptPrefix
from cachewise_bench.policies.long_prefill import LongPrefill
from cachewise_bench.policies.lpm import Lpm
from cachewise_bench.policies.ours import Forecaster, Ours, true_wait
from cachewise_bench.policies.plas import Plas
from cachewise_bench.policies.qilru import Qilru
from cachewise_bench.policies.rr_tail import RrTail
from cachewise_bench.policies.slru import Slru
from cachewise_bench.policies.thunder import Thunder
from cachewise_bench.policies.training import TENANT, Training, calls_as_sent
from cachewise_bench.policies.vllm_prefix import VllmPrefix

Factory = Callable[[Training], Policy]

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
    "ours": lambda training: Ours(learned_wait(training)),
    "ours-oracle": lambda training: Ours(true_wait, "ours-oracle"),
    "ours-no-forecast": lambda training: Ours(None, "ours-no-forecast"),
}

ORACLES = frozenset({"cachewise-oracle", "belady", "ours-oracle"})
"""These see the future."""


def learned_wait(training: Training) -> Forecaster:
    """What the predictor would send for a turn, by the product's model of the training sessions."""
    known: dict[tuple[ToolCall, ...], Forecast] = {}

    def forecast(away: Away) -> Forecast:
        calls = calls_as_sent(away.turn)
        if calls not in known:
            made = training.model.forecast(TENANT, Wait.TOOL if calls else Wait.HUMAN, calls)
            known[calls] = Forecast(made.elapsed_s, made.remaining_s, made.source.value)
        return known[calls]

    return forecast
