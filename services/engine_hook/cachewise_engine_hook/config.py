"""Settings of the engine hook: one frozen dataclass for both of vLLM's processes.

They come from `--additional-config '{"cachewise": {...}}'`, whose keys are the field names below,
and from environment variables named CACHEWISE_ + the field's name in capitals, which win. A bad
value stops start-up and names its source.
"""

from __future__ import annotations

import json
import math
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

MODES = ("observe", "order", "full")
ENVIRONMENT_PREFIX = "CACHEWISE_"


class ConfigError(ValueError):
    """A setting has an unusable value; the message names the setting and where it was set."""


@dataclass(frozen=True)
class Config:
    """Settings of the scheduler (EngineCore process) and of the middleware (API server process)."""

    predictor: str = ""
    """host:port of the predictor's gRPC server. Empty: none; blocks go in stock vLLM's order."""

    replica: str = field(default_factory=socket.gethostname)
    """Name of this server on the wire. The scheduler appends /dpN for data-parallel rank N."""

    tenant: str = "default"
    """Whose curves serve this server's sessions."""

    id_key: str = ""
    """Key of the hash that session ids go through before they leave the process; one per fleet."""

    metrics_port: int = 0
    """Port of the scheduler's own /metrics, /claims and /decisions. 0: no port is opened."""

    metrics_host: str = "127.0.0.1"
    """Address that metrics_port is opened on. 0.0.0.0 where Prometheus is on another host."""

    max_overtakes: int = 256
    """A waiting request that others were admitted before this many times goes next."""

    max_wait_s: float = 120.0
    """A waiting request older than this goes next, whatever its prefix."""

    max_sessions: int = 20_000
    """Sessions that the engine remembers; the one idle longest is forgotten first."""

    claim_share: float = 0.5
    """Largest share of the pool that retention claims may protect. 0: there are none."""

    claim_max_s: float = 3600.0
    """Longest time that a retention claim may last, in seconds."""

    claim_ttl_s: float = 0.0
    """Every turn that ends claims its blocks for so many seconds. 0: only those that ask for it."""

    trace_share: float = 0.0
    """Share of the sessions whose decisions are traced, for /decisions."""

    event_queue_size: int = 10_000
    """Events that wait for the predictor; the oldest is dropped first, and counted."""

    mode: str = "full"
    """observe: decide, act on nothing, report the difference. order: the prefix-aware waiting queue
    alone, no predictor needed. full: everything."""

    preset: str = "throughput"
    """throughput: the shortest mean session time. fair: the shortest longest wait, longer mean."""

    tenant_weights: dict[str, float] = field(default_factory=dict)
    """Shares of the engine by `cachewise_tenant`, such as {"a": 2}; 1 for a tenant not named here.
    In the environment as JSON."""

    human_first: bool = False
    """Blocks of sessions that wait for a person go before those of all that wait for a tool, as in
    the paper. Otherwise people's own curve ranks them, as any other."""

    recompute_cost_weight: float = 0.0
    """Blocks go by remaining wait / cost**weight, cost being what computing the session's context
    again takes. 0: by the wait alone. 1: a context twice as dear may be away twice as long."""

    fallback: bool = False
    """On a vLLM that the self-check refuses: run as stock vLLM instead of not starting."""

    def __post_init__(self) -> None:
        for name, least in (
            ("max_overtakes", 1),
            ("max_sessions", 1),
            ("event_queue_size", 1),
            ("max_wait_s", 0),
            ("claim_max_s", 0),
            ("claim_ttl_s", 0),
        ):
            if not getattr(self, name) >= least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)!r}")
        for name in ("claim_share", "trace_share", "recompute_cost_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be from 0 to 1, not {getattr(self, name)!r}")
        for name, known in (("mode", MODES), ("preset", ("throughput", "fair"))):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"{name} must be {' or '.join(known)}, not {getattr(self, name)!r}"
                )
        if not all(weight > 0 for weight in self.tenant_weights.values()):
            raise ConfigError(f"tenant_weights must be above 0, not {self.tenant_weights!r}")
        if self.predictor and not _is_host_and_port(self.predictor):
            raise ConfigError(f"predictor must be host:port, not {self.predictor!r}")
        if not 0 <= self.metrics_port <= 65_535:
            raise ConfigError(f"metrics_port must be a port number or 0, not {self.metrics_port}")

    @classmethod
    def load(cls, additional_config: object, environ: Mapping[str, str]) -> Config:
        """Reads the "cachewise" part of vLLM's additional_config, then the environment over it.

        Raises ConfigError for an unknown key, a value of the wrong type and a value out of range.
        """
        section = (
            additional_config.get("cachewise", {}) if isinstance(additional_config, Mapping) else {}
        )
        if not isinstance(section, Mapping):
            raise ConfigError(f"--additional-config: cachewise must be an object, not {section!r}")
        known = {f.name for f in fields(cls)}
        if unknown := sorted(section.keys() - known):
            raise ConfigError(
                f"--additional-config: cachewise has no setting {unknown[0]!r}; "
                f"it has {', '.join(sorted(known))}"
            )
        given: dict[str, tuple[str, object]] = {
            k: (f"--additional-config cachewise.{k}", v) for k, v in section.items()
        }
        for name in known:
            if (variable := ENVIRONMENT_PREFIX + name.upper()) in environ:
                given[name] = (variable, environ[variable])
        types = get_type_hints(cls)
        return cls(
            **{name: _cast(source, value, types[name]) for name, (source, value) in given.items()}
        )


def _is_host_and_port(text: str) -> bool:
    """host:port, where an IPv6 address stands in brackets."""
    found = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})", text, re.ASCII)
    return found is not None and 1 <= int(found[1]) <= 65_535


def _cast(source: str, value: object, kind: type) -> Any:
    """value as kind: str as it is, bool from true/false/1/0, numbers from numbers or their text,
    numbers by name from an object or its JSON text."""
    if kind == dict[str, float]:
        return _weights(source, value)
    text = str(value).strip()
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if isinstance(value, bool) if kind is not str else not isinstance(value, str):
            raise ValueError(text)
        number = kind(text if kind is not str else value)
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(text)
        return number
    except (KeyError, ValueError, TypeError):
        raise ConfigError(f"{source}: {value!r} is not a {kind.__name__}") from None


def _weights(source: str, value: object) -> dict[str, float]:
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        given = None
    if not isinstance(given, Mapping):
        raise ConfigError(f"{source}: {value!r} is not an object of numbers by name")
    return {str(name): _cast(f"{source}.{name}", number, float) for name, number in given.items()}
