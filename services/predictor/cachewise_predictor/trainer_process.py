"""The trainer as a child of `serve`, at low priority, so that serving is not slowed.

It is started again when it dies. It ends with its parent, however that ends: it reads a pipe whose
other end only the parent has, and the operating system closes that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable

from .config import ENVIRONMENT_PREFIX

LOWEST_PRIORITY = 19
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_STEADY_S = 60.0
_GRACE_S = 5.0

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

_log = logging.getLogger(__name__)


class TrainerProcess:
    def __init__(self, store_url: str) -> None:
        # Not as an argument, which everybody on the machine can see: it may hold a password.
        self._settings = _ONE_THREAD | {f"{ENVIRONMENT_PREFIX}REDIS_URL": store_url}
        self._is_stopping = asyncio.Event()

    async def run(self) -> None:
        """Until `stop`."""
        clock, pause_s = asyncio.get_running_loop().time, _FIRST_PAUSE_S
        while not self._is_stopping.is_set():
            started = clock()
            try:
                await self._run_once()
            except OSError as error:
                _log.error("the trainer cannot be started: %s", error)
            pause_s = _FIRST_PAUSE_S if clock() - started > _STEADY_S else pause_s
            if not self._is_stopping.is_set():
                _log.warning("the trainer has ended; it is started again in %.0f s", pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def stop(self) -> None:
        """Lets `run` end the child and return."""
        self._is_stopping.set()

    async def _run_once(self) -> None:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cachewise_predictor", "trainer", "--child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            env=os.environ | self._settings,
            # Ctrl-C is for `serve`, which ends this. No session of its own: Linux may share the
            # processors among sessions (CONFIG_SCHED_AUTOGROUP), whatever their priorities.
            process_group=0,
        )
        ended = asyncio.create_task(child.wait())
        stop = asyncio.create_task(self._is_stopping.wait())
        await asyncio.wait((ended, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not ended.done():
            child.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), _GRACE_S)
        if not ended.done():
            child.kill()
        await ended


def give_way() -> None:
    """In the child: whoever serves goes first. Not SCHED_IDLE, which on a machine that is always
    busy gets a five times smaller share still: too little to keep the lease.
    """
    os.nice(LOWEST_PRIORITY)


def when_parent_ends(do: Callable[[], None]) -> None:
    """In the child."""
    loop = asyncio.get_running_loop()
    parent = sys.stdin.fileno()

    def read() -> None:
        if not os.read(parent, 64):
            loop.remove_reader(parent)
            do()

    loop.add_reader(parent, read)
