"""What vLLM is asked to do on this machine's CPU, so that a run takes minutes on any."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cpu:
    """What fits a CPU."""

    dtype: str
    """Of weights and KV cache, in vLLM's words; "auto" is the model's own."""
    layers: int
    """Of the small random model."""


_USUAL = Cpu("auto", layers=8)
_WITHOUT_AVX512 = Cpu("float32", layers=2)
"""There a product of bfloat16 matrices takes up to a hundred times as long as one of float32, and
that still three times as long as elsewhere."""


def fit(cpuinfo: str) -> Cpu:
    """What fits the CPU that cpuinfo, the text of /proc/cpuinfo, describes."""
    flags = set(cpuinfo.split())
    return _WITHOUT_AVX512 if "avx2" in flags and "avx512f" not in flags else _USUAL


def this_cpu() -> Cpu:
    """What fits this machine; where there is no /proc/cpuinfo, as on macOS, the usual."""
    with contextlib.suppress(OSError):
        return fit(Path("/proc/cpuinfo").read_text())
    return _USUAL
