"""Stored models come to serve, and broken ones do not, with a real Valkey."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from cachewise_predictor import adoption as module
from cachewise_predictor.adoption import Adoption
from cachewise_predictor.embedded import EmbeddedStore
from cachewise_predictor.events import SessionKey, Wait
from cachewise_predictor.model import Model
from cachewise_predictor.model_file import to_bytes
from cachewise_predictor.published import ModelInfo, Pointer
from cachewise_predictor.service import Predictor
from cachewise_predictor.store import Store
from cachewise_predictor.training import TrainerStatus
from redis.asyncio import Redis

from .conftest import KEY, calls, ended, interval, sample

INFO = ModelInfo("traces", 1_000.0)


def model_of(seconds: float, samples: int = 100) -> Model:
    return Model().learn(interval(seconds, "Bash") for _ in range(samples))


async def publish(store: Store, model: Model, generation: int, blob: bytes | None = None) -> None:
    pointer = Pointer(model.version, generation)
    after = generation - 1 if generation > 1 else None
    blob = to_bytes(model) if blob is None else blob
    assert await store.publish_model(pointer, blob, INFO, after)


@pytest.fixture
async def adoption(store: Store, predictor: Predictor) -> AsyncIterator[Adoption]:
    yield Adoption(store, predictor)


async def test_a_published_model_serves_and_is_shown(
    store: Store, adoption: Adoption, predictor: Predictor
) -> None:
    await adoption.refresh()
    assert predictor.model.version == "prior"
    model = model_of(80.0)
    await publish(store, model, 1)
    await adoption.refresh()
    assert predictor.model.version == model.version
    assert sample(predictor, "model_samples") == 100
    assert sample(predictor, "model_info", version=model.version) == 1
    assert sample(predictor, "model_groups", level="kinds") == 1


async def test_open_intervals_have_their_forecasts_before_the_model_serves(
    store: Store, adoption: Adoption, predictor: Predictor
) -> None:
    predictor.report(ended(f"t{n}", key=SessionKey("acme", f"s{n}")) for n in range(50))
    await publish(store, model_of(80.0), 1)
    await adoption.refresh()
    made = dict(predictor.model._forecasts)
    assert all(predictor.forecast(SessionKey("acme", f"s{n}")).forecast for n in range(50))
    assert predictor.model._forecasts == made


async def test_requests_are_served_while_models_are_swapped(
    store: Store, adoption: Adoption, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_S", 0.0)
    predictor.report([ended("t0")])
    versions = list[str]()
    task = asyncio.create_task(adoption.run())
    models = [model_of(float(n), n) for n in range(1, 6)]
    for generation, model in enumerate(models, 1):
        await publish(store, model, generation)
        async with asyncio.timeout(20):
            while predictor.model.version != model.version:
                forecast = predictor.forecast(KEY).forecast
                assert forecast is not None
                versions.append(forecast.model_version)
                await asyncio.sleep(0)
    adoption.stop()
    await task
    assert set(versions) <= {"prior", *(model.version for model in models)}
    assert sorted(versions, key=versions.index) == versions


@pytest.mark.parametrize("blob", [b"", b"broken"])
async def test_a_broken_model_is_refused_once_and_the_present_one_stays(
    store: Store, adoption: Adoption, predictor: Predictor, blob: bytes
) -> None:
    good, later = model_of(80.0), model_of(5.0)
    await publish(store, good, 1)
    await adoption.refresh()
    await publish(store, model_of(1.0), 2, blob)
    for _ in range(2):
        await adoption.refresh()
    assert sample(predictor, "refused_models_total") == 1
    assert predictor.model.version == good.version
    assert gc.isenabled()
    await publish(store, later, 3)
    await adoption.refresh()
    assert predictor.model.version == later.version


async def test_a_wiped_store_gets_the_model_back(
    store: Store, adoption: Adoption, valkey: EmbeddedStore
) -> None:
    model = model_of(80.0)
    await publish(store, model, 1)
    await adoption.refresh()
    redis = Redis.from_url(valkey.url)
    await redis.flushall()
    await redis.aclose()
    await adoption.refresh()
    assert await store.pointer() == Pointer(model.version, 1)
    assert await store.load_model(model.version) == to_bytes(model)
    assert await store.model_info(model.version) == INFO


async def test_what_the_trainer_tells_is_shown(
    store: Store, adoption: Adoption, predictor: Predictor
) -> None:
    await adoption.refresh()
    assert sample(predictor, "trainer_up") == 0
    await store.acquire_lease()
    await store.write_status(TrainerStatus(promotions=3, lag=7, score=0.25))
    await adoption.refresh()
    assert sample(predictor, "trainer_up") == 1
    assert sample(predictor, "trainer_promotions_total") == 3
    assert sample(predictor, "trainer_lag_intervals") == 7
    assert sample(predictor, "trainer_candidate_score") == 0.25


async def test_only_open_intervals_are_warmed_and_their_number_is_bounded(
    predictor: Predictor,
) -> None:
    predictor.report(ended(f"t{n}", key=SessionKey("acme", f"s{n}")) for n in range(5))
    predictor.report([ended("x", key=SessionKey("acme", "s1"), wait=Wait.HUMAN, tools=())])
    newest = predictor.sessions.newest_open(3)
    assert [key.session for key, _, _ in newest] == ["s1", "s4", "s3"]
    assert newest[1][1].calls == calls("Bash")
