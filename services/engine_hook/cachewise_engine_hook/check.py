"""Start-up self-check: is this vLLM one whose insides the hook knows?

The scheduler interface is not public, so the hook names everything that it relies on and looks for
it before the first request, instead of failing in the middle of one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

OLDEST, NEWEST = (0, 31), (0, 33)

SCHEDULER_METHODS = {
    "schedule": {"throttle_prefills"},
    "add_request": {"request"},
    "reset_prefix_cache": set(),
    "shutdown": set(),
    "_free_request": {"request"},
    "_free_request_blocks": {"request"},
}
SCHEDULER_ATTRIBUTES = (
    "waiting",
    "kv_holding_waiting",
    "running",
    "requests",
    "kv_cache_manager",
    "kv_cache_config",
    "block_size",
)
BLOCK_POOL_ATTRIBUTES = ("blocks", "free_block_queue", "get_cached_block", "hash_block_size")
COORDINATOR_ATTRIBUTES = ("single_type_managers", "find_longest_cache_hit")


class UnsupportedVllm(RuntimeError):
    """This vLLM is not one that the hook knows; the message names what differs and what to do."""


def version_problems(version: str) -> list[str]:
    """Why this version of vLLM is not supported; empty if it is."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        return []
    known = " to ".join(".".join(map(str, v)) for v in (OLDEST, NEWEST))
    return [f"its version is {version}, and this hook knows {known}"]


def class_problems(scheduler: type) -> list[str]:
    """What the hook overrides or calls in vLLM's Scheduler and does not find there."""
    problems = []
    for name, parameters in SCHEDULER_METHODS.items():
        method = getattr(scheduler, name, None)
        if method is None:
            problems.append(f"Scheduler.{name} is missing")
        elif missing := parameters - inspect.signature(method).parameters.keys():
            problems.append(f"Scheduler.{name} takes no {sorted(missing)[0]}")
    return problems


def attribute_problems(what: str, instance: object, names: Iterable[str]) -> list[str]:
    return [f"{what}.{name} is missing" for name in names if not hasattr(instance, name)]


def replacement_problems(theirs: type, ours: type) -> list[str]:
    """Public methods of vLLM's class that our replacement does not have."""
    return [
        f"{theirs.__name__}.{name} is new: {ours.__name__} lacks it"
        for name, member in inspect.getmembers(theirs)
        if callable(member)
        and (not name.startswith("_") or name in ("__bool__", "__len__", "__iter__"))
        and name in _own_names(theirs)
        and not hasattr(ours, name)
    ]


def raise_if(problems: list[str], version: str) -> None:
    if problems:
        raise UnsupportedVllm(
            f"CacheWise does not know this vLLM, {version}: "
            + "; ".join(problems)
            + '. Install a supported vLLM, or set "fallback": true to serve as stock vLLM.'
        )


def _own_names(cls: type) -> set[str]:
    """Names defined by the class and its bases outside the standard library."""
    bases = [c for c in cls.__mro__ if c.__module__.startswith(cls.__module__.split(".")[0])]
    return {name for c in bases for name in vars(c)}
