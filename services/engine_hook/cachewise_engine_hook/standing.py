"""Standing: who goes before whom, whatever their requests cost: by class, then by tenant.

A request says in `vllm_xargs` what it is: `cachewise_class`, one of interactive, agent and batch,
and `cachewise_tenant`. Interactive ones go before agents' and these before batch ones. Within a
class the tenant that has had the least goes first: the tokens that the engine has computed for it,
divided by its weight, old ones counting less (weighted attained service). Differences below a
quantum do not count, so that the resident prefix decides among tenants that are about even.

A tenant that has been away saves nothing up: it starts no lower than the least served of those that
are here. All of this is within the bounds on overtaking of waiting_queue.py and the patience of
admission.py, which come first: nobody starves. Requests that say nothing are agents' of one tenant,
and while all do, nothing is reordered and nothing is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

CLASS_KEY, TENANT_KEY = "cachewise_class", "cachewise_tenant"
CLASSES = ("interactive", "agent", "batch")
HALF_LIFE_S = 300.0
QUANTUM_TOKENS = 20_000
MOST_TENANTS = 1_000
"""That are told apart. Further ones are as those that name none, until others are forgotten."""
_FORGOTTEN_TOKENS = 1.0

_DEFAULT_CLASS = CLASSES.index("agent")
_NO_TENANT = ""


class Standing(NamedTuple):
    """The lower goes first."""

    request_class: int = _DEFAULT_CLASS
    quanta: int = 0
    """Of service that its tenant has had."""


LIKE_ALL = Standing()


class StandingRequest(Protocol):
    """What is used of vLLM's Request."""

    request_id: str
    sampling_params: Any


class Standings:
    """Of all requests in the engine. `now` is seconds of the engine's clock."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """weights: of tenants; 1 for those that are not in it."""
        self.malformed = 0
        """Requests whose class or tenant is none."""
        self._weights = weights
        self._named: dict[str, tuple[int, str]] = {}
        """Class and tenant of the requests that name one."""
        self._here: Counter[str] = Counter()
        """Requests in the engine, by tenant."""
        self._service: dict[str, float] = {}
        """By tenant, as it was at the moment below; only once some request has named a tenant."""
        self._at = 0.0

    def request_arrived(self, request: StandingRequest, now: float) -> None:
        named = self._read(request)
        if named != (_DEFAULT_CLASS, _NO_TENANT):
            self._named[request.request_id] = named
        tenant = named[1]
        if tenant != _NO_TENANT or self._service:
            self._decay(now)
            if not self._here[tenant]:
                least = [self._share(t) for t, count in self._here.items() if count]
                start = min(least, default=0.0) * self._weight(tenant)
                self._service[tenant] = max(self._service.get(tenant, 0.0), start)
        self._here[tenant] += 1

    def served(self, request: StandingRequest, tokens: int, now: float) -> None:
        """So many tokens are computed for the request."""
        if self._service:
            self._decay(now)
            tenant = self._named.get(request.request_id, (0, _NO_TENANT))[1]
            self._service[tenant] = self._service.get(tenant, 0.0) + tokens

    def request_left(self, request: StandingRequest) -> None:
        """It has finished or was aborted."""
        tenant = self._named.pop(request.request_id, (0, _NO_TENANT))[1]
        self._here[tenant] -= 1
        if self._here[tenant] <= 0:
            del self._here[tenant]

    @property
    def differ(self) -> bool:
        """Whether not all requests stand alike; they may, then, stand otherwise at any moment."""
        return bool(self._named or self._service)

    def of(self, request: StandingRequest) -> Standing:
        if not self.differ:
            return LIKE_ALL
        request_class, tenant = self._named.get(request.request_id, (_DEFAULT_CLASS, _NO_TENANT))
        quanta = int(self._share(tenant) // QUANTUM_TOKENS) if self._service else 0
        return Standing(request_class, quanta)

    # ---- steps ----------------------------------------------------------------------------------

    def _read(self, request: StandingRequest) -> tuple[int, str]:
        """Class and tenant; what is none of ours is counted, and is as if it were not there."""
        given = getattr(request.sampling_params, "extra_args", None) or {}
        name, tenant = given.get(CLASS_KEY, CLASSES[_DEFAULT_CLASS]), given.get(TENANT_KEY, "")
        request_class = CLASSES.index(name) if name in CLASSES else _DEFAULT_CLASS
        self.malformed += name not in CLASSES or not isinstance(tenant, str)
        is_full = len(self._service) >= MOST_TENANTS
        if not isinstance(tenant, str) or (is_full and tenant not in self._service):
            tenant = _NO_TENANT
        return request_class, tenant

    def _decay(self, now: float) -> None:
        """Brings all services to this moment: O(tenants), once per moment."""
        if now <= self._at:
            return
        factor, self._at = 0.5 ** ((now - self._at) / HALF_LIFE_S), now
        here, decayed = self._here, {t: s * factor for t, s in self._service.items()}
        self._service = {t: s for t, s in decayed.items() if s > _FORGOTTEN_TOKENS or t in here}

    def _share(self, tenant: str) -> float:
        return self._service.get(tenant, 0.0) / self._weight(tenant)

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)
