"""The composition root: builds everything from the command line, runs it, and ends it in order."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import REGISTRY
from rich.console import Console

from . import command_line, versions
from .adoption import Adoption
from .config import Config
from .embedded import EmbeddedStore
from .errors import CacheWiseError, StoreError
from .importers.command import import_logs
from .insight import clusters, explain
from .journal import Journal
from .metrics import Metrics
from .rpc import RpcServer
from .service import Predictor
from .sessions import Sessions
from .store import Store
from .sync import StoreSync
from .train import load_current, train
from .trainer import Trainer
from .trainer_process import TrainerProcess, give_way, when_parent_ends
from .training import Schedule
from .watchers import Watchers
from .web import Status, WebServer, make_app

_GRACE_S = 5.0
_SWEEP_S = 1.0

_SWITCH_S = 0.0005
"""A request waits for so long, not for Python's 5 ms, if a thread that reads a model has the
interpreter.
"""

_COLLECTED_AT = (10_000, 10, 50)
"""Of Python's collector, in place of 700, 10, 10: what is remembered of a model has no cycles, and
would be walked again and again while it grows.
"""

_log = logging.getLogger("cachewise_predictor")


def main() -> None:
    arguments = command_line.parser().parse_args()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        if arguments.command == "import":
            console = Console(stderr=True)
            print(import_logs(arguments.format, arguments.paths, arguments.out, console))
            return
        config = Config.load(vars(arguments), os.environ)
        with _store_url(config) as (url, revive):
            if arguments.command == "serve":
                asyncio.run(serve(config, url, revive))
            elif arguments.command == "trainer":
                run_trainer(url, arguments.child)
            else:
                print(asyncio.run(_answer(arguments, url)), flush=True)
    except CacheWiseError as error:
        sys.exit(f"cachewise-predictor: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `explain … | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


async def serve(config: Config, store_url: str, revive: Callable[[], None]) -> None:
    """Serves until SIGTERM or SIGINT, then drains. Raises ConfigError if a port is taken."""
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(*_COLLECTED_AT)
    stop = asyncio.create_task(_stop_signal())
    metrics = Metrics(REGISTRY)
    predictor = Predictor(Sessions(), Watchers(), Journal(), metrics, _steady_clock())
    store = Store(store_url)
    sync, adoption = StoreSync(store, predictor, revive), Adoption(store, predictor)
    rpc = RpcServer(predictor, str(config.grpc))
    status = Status()
    web = WebServer(make_app(predictor, status, lambda: sync.is_up), config.http)
    await sync.start()
    with contextlib.suppress(StoreError):
        await adoption.refresh()
    await rpc.start()
    trainer = TrainerProcess(store_url)
    runs = [web.run(), sync.run(), adoption.run(), _sweep(predictor)]
    tasks = [asyncio.create_task(run) for run in runs]
    if config.trainer:
        tasks.append(asyncio.create_task(trainer.run()))
    status.is_serving = True
    ready = f"grpc={config.grpc._replace(port=rpc.port)} http={config.http._replace(port=web.port)}"
    print(f"cachewise-predictor ready {ready}", flush=True)

    await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)

    _log.info("draining")
    status.is_serving = False
    await rpc.drain(_GRACE_S)
    for part in (trainer, adoption, sync, web):
        part.stop()
    tasks[3].cancel()
    await _end(tasks)
    await store.close()
    _log.info("stopped")


def run_trainer(store_url: str, is_child: bool) -> None:
    """Trains until SIGTERM or SIGINT; as a child of `serve`, also until that ends."""
    if is_child:
        give_way()
    asyncio.run(_train_until_stopped(store_url, is_child))


async def _train_until_stopped(store_url: str, is_child: bool) -> None:
    store = Store(store_url)
    trainer = Trainer(store, _steady_clock(), Schedule())
    stop = asyncio.create_task(_stop_signal())
    stop.add_done_callback(lambda _: trainer.stop())
    if is_child:
        when_parent_ends(trainer.stop)
    await trainer.run()
    stop.cancel()
    await store.close()


async def _answer(arguments: argparse.Namespace, store_url: str) -> str:
    """What the commands print that do not serve."""
    store = Store(store_url)
    try:
        if arguments.command == "train":
            return await train([Path(path) for path in arguments.traces.split(",") if path], store)
        if arguments.command == "models":
            return await _models(arguments, store)
        model = await load_current(store)
        if arguments.command == "clusters":
            return clusters(model)
        return explain(model, arguments.tenant, arguments.tool, arguments.args)
    finally:
        await store.close()


async def _models(arguments: argparse.Namespace, store: Store) -> str:
    match arguments.action:
        case "list":
            return await versions.list_models(store)
        case "show":
            return await versions.show_model(store, arguments.version)
        case "diff":
            return await versions.diff_models(store, arguments.version, arguments.other)
        case _:
            return await versions.roll_back(store, arguments.version)


@contextlib.contextmanager
def _store_url(config: Config) -> Iterator[tuple[str, Callable[[], None]]]:
    """The store's URL, and how to start it again if it dies."""
    if config.redis_url:
        yield config.redis_url, lambda: None
        return
    embedded = EmbeddedStore(config.data_dir)
    embedded.start()
    try:
        yield embedded.url, embedded.ensure_running
    finally:
        embedded.stop()


async def _sweep(predictor: Predictor) -> None:
    while True:
        predictor.expire()
        await asyncio.sleep(_SWEEP_S)


async def _stop_signal() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Waits for tasks; an error of theirs (a bug) comes out here: the process fails visibly."""
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


def _steady_clock() -> Callable[[], float]:
    """Seconds since the epoch, as of the start; from there a clock that is never set."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


if __name__ == "__main__":
    main()
