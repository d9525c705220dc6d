from __future__ import annotations

import pytest
import vllm
from cachewise_engine_hook import check
from vllm.v1.core.sched.scheduler import Scheduler


def test_the_installed_vllm_has_all_that_the_hook_relies_on() -> None:
    assert check.version_problems(vllm.__version__) == []
    assert check.class_problems(Scheduler) == []


@pytest.mark.parametrize("version", ["0.30.2", "0.34.0", "1.0.0", "dev", ""])
def test_another_version_is_named_together_with_the_known_ones(version: str) -> None:
    (problem,) = check.version_problems(version)
    assert version in problem and "0.31 to 0.33" in problem


def test_what_is_missing_or_has_changed_is_named() -> None:
    class Changed:
        def schedule(self) -> None: ...
        def add_request(self, request: object) -> None: ...
        def shutdown(self) -> None: ...
        def reset_prefix_cache(self) -> bool: ...
        def _free_request(self, request: object) -> None: ...

    assert check.class_problems(Changed) == [
        "Scheduler.schedule takes no throttle_prefills",
        "Scheduler._free_request_blocks is missing",
    ]


def test_a_new_method_of_a_replaced_class_is_named() -> None:
    class Theirs:
        def popleft(self) -> None: ...
        def swap(self) -> None: ...

    class Ours:
        def popleft(self) -> None: ...

    assert check.replacement_problems(Theirs, Ours) == ["Theirs.swap is new: Ours lacks it"]


def test_the_refusal_says_what_to_do() -> None:
    with pytest.raises(check.UnsupportedVllm, match='0.99.1: x.*"fallback": true'):
        check.raise_if(["x"], "0.99.1")
