from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cachewise_bench.cpu import fit
from cachewise_bench.servers import ServerError, predictor_ready, running
from cachewise_bench.vllm_server import (
    EngineSettings,
    engine_command,
    engine_environ,
    engine_ready,
    pool_blocks,
)
from cachewise_bench.workload import WorkloadError

# Starts a child that ignores SIGTERM, writes its pid, and sleeps.
STUBBORN_FAMILY = """
import pathlib, signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
pid = subprocess.Popen([sys.executable, "-c", child]).pid
pathlib.Path(sys.argv[1]).write_text(str(pid))
time.sleep(600)
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: object, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_children_are_gone_too_however_the_context_ends(
    tmp_path: Path, error: type[BaseException] | None
) -> None:
    pid_file = tmp_path / "pid"
    try:
        with running("it", python(STUBBORN_FAMILY, str(pid_file)), tmp_path / "log", {}):
            wait_for(lambda: pid_file.exists() and pid_file.read_text())
            if error:
                raise error
    except KeyboardInterrupt:
        pass
    child = int(pid_file.read_text())
    wait_for(lambda: not is_alive(child))


def test_children_of_a_killed_server_are_gone_too(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with running("it", python(STUBBORN_FAMILY, str(pid_file)), tmp_path / "log", {}) as process:
        wait_for(lambda: pid_file.exists() and pid_file.read_text())
        os.kill(process.popen.pid, 9)
        process.popen.wait()
        assert is_alive(int(pid_file.read_text()))
    wait_for(lambda: not is_alive(int(pid_file.read_text())))


async def test_a_server_that_dies_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    code = "import sys; [print('line', i) for i in range(99)]; sys.exit('no such port')"
    with (
        pytest.raises(
            ServerError, match=r"(?s)the predictor ended with exit code 1.*line 90.*no such port"
        ),
        running("the predictor", python(code), tmp_path / "log", {}) as process,
    ):
        await predictor_ready(process, 20)  # fmt: skip


async def test_a_server_that_is_never_ready_is_an_error(tmp_path: Path) -> None:
    code = "import time; print('thinking', flush=True); time.sleep(600)"
    with running("vLLM", python(code), tmp_path / "log", {}) as process:
        with pytest.raises(ServerError, match="not ready after 1 s"):
            await predictor_ready(process, 1)
        with pytest.raises(ServerError, match="(?s)not ready after 1 s.*thinking"):
            await engine_ready(process, "http://127.0.0.1:1", 1)


async def test_the_predictors_addresses_are_read_from_its_log(tmp_path: Path) -> None:
    line = "cachewise-predictor ready grpc=127.0.0.1:1234 http=127.0.0.1:5678"
    code = f"import time; print('a\\n{line}', flush=True); time.sleep(600)"
    with running("the predictor", python(code), tmp_path / "log", {}) as process:
        address = await predictor_ready(process, 20)
    assert (address.grpc, address.http) == ("127.0.0.1:1234", "127.0.0.1:5678")


async def test_an_engine_is_ready_when_health_says_so(tmp_path: Path) -> None:
    answers = iter((503, 200))
    app = web.Application()

    async def health(_: web.Request) -> web.Response:
        return web.Response(status=next(answers))

    app.router.add_get("/health", health)
    code = "import time; time.sleep(600)"
    async with TestServer(app) as server:
        with running("vLLM", python(code), tmp_path / "log", {}) as process:
            await engine_ready(process, str(server.make_url("")).rstrip("/"), 20)
    assert next(answers, None) is None


def test_policies_differ_by_the_three_options_of_the_hook_only() -> None:
    settings = EngineSettings(Path("model"), blocks=100, max_model_len=2048)
    stock = engine_command(settings, 8000, "tcp://127.0.0.1:1", None)
    ours = engine_command(settings, 8000, "tcp://127.0.0.1:1", {"predictor": "127.0.0.1:2"})
    assert ours[: len(stock)] == stock
    assert ours[len(stock) :: 2] == ["--scheduler-cls", "--middleware", "--additional-config"]


def test_float32_is_served_where_bfloat16_would_crawl() -> None:
    crawls = fit("flags : fpu avx avx2\n")
    usual = fit("flags : fpu avx avx2 avx512f avx512_bf16\n")
    assert crawls.dtype == "float32" and usual.dtype == "auto"
    assert crawls.layers < usual.layers
    assert fit("Features : fp asimd bf16\n") == fit("") == usual
    command = engine_command(EngineSettings(Path("m"), 1, 1, dtype="float32"), 1, "", None)
    assert command[command.index("--dtype") + 1] == "float32"


def test_variables_that_are_set_stay() -> None:
    environ = engine_environ({"VLLM_CPU_KVCACHE_SPACE": "9"})
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "9" and environ["HF_HUB_OFFLINE"] == "1"


def test_the_pool_is_a_fraction_of_all_contexts_but_fits_the_largest() -> None:
    assert pool_blocks({"a": 3200, "b": 6400}, 0.8, None) == 240
    assert pool_blocks({"a": 3200, "b": 6400}, 0.1, None) == 202


def test_a_pool_too_small_for_a_session_is_an_error_that_names_it() -> None:
    assert pool_blocks({"a": 3200}, 0.4, 102) == 102
    with pytest.raises(WorkloadError, match="session a alone needs 102 blocks"):
        pool_blocks({"a": 3200}, 0.4, 101)
