"""Hints of other routers, translated into what vLLM itself understands.

Dynamo's `nvext.agent_hints.priority`, where the higher goes first, becomes vLLM's header
`X-Vllm-Priority`, where the lower does. vLLM heeds it with --scheduling-policy priority. A header
that is there already stays: whoever set it speaks vLLM's language.
"""

from __future__ import annotations

from collections.abc import Mapping

PRIORITY_HEADER = b"x-vllm-priority"
_MOST_PRIORITY = 2**63 - 1


def vllm_priority(body: Mapping[str, object]) -> int | None:
    """vLLM's priority as the body's Dynamo hint has it; None if there is none, or it is no int64.

    body: see identity.read_body.
    """
    hints = _object(body.get("nvext")).get("agent_hints")
    priority = _object(hints).get("priority")
    if type(priority) is not int or abs(priority) > _MOST_PRIORITY:
        return None
    return -priority


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
