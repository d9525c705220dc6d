"""The numpy path assigns as scikit-learn does; odd input gives no clusters, not an error."""

from __future__ import annotations

import random

import numpy as np
import pytest
from cachewise_predictor.clusters import MIN_SAMPLES, Clusters, words
from sklearn.feature_extraction.text import TfidfVectorizer

TOPICS = ("git push origin main", "cargo test workspace all", "npm run build web", "ls src lib")


def sample(seed: int, size: int = 400) -> list[str]:
    rng = random.Random(seed)
    return [
        f"{rng.choice(TOPICS)} {rng.choice('abcdefgh')}{rng.randrange(50)}" for _ in range(size)
    ]


def test_vectors_and_nearest_centroids_are_those_of_scikit_learn() -> None:
    texts = sample(0)
    clusters = Clusters.fit(texts, most=10)
    assert clusters is not None
    reference = TfidfVectorizer(
        analyzer=words, sublinear_tf=True, vocabulary=list(clusters.vocabulary)
    ).fit(texts)
    assigned = 0
    for text in sample(1):
        dense = reference.transform([text]).toarray()[0]
        columns, values = clusters.vector(text)
        np.testing.assert_allclose(dense[columns], values, rtol=1e-5)
        assert np.count_nonzero(dense) == len(columns)
        distances_sq = ((clusters.centroids - dense) ** 2).sum(axis=1)
        nearest = clusters.assign(text)
        assigned += nearest is not None
        assert nearest in (None, int(distances_sq.argmin()))
    assert assigned > 380


def test_different_topics_have_different_clusters() -> None:
    clusters = Clusters.fit(sample(0), most=10)
    assert clusters is not None
    assert len({clusters.assign(topic) for topic in TOPICS}) == len(TOPICS)


def test_what_resembles_nothing_is_in_no_cluster() -> None:
    clusters = Clusters.fit(sample(0), most=10)
    assert clusters is not None
    assert clusters.assign("terraform apply") is None
    assert clusters.assign("git terraform apply plan destroy region zone") is None
    assert clusters.assign("") is None


@pytest.mark.parametrize(
    "texts", [[], ["a"], ["same text"] * 500, [""] * 500, ["\x00\ud800"] * 300, ["9" * 400] * 100]
)
def test_too_little_to_tell_apart_gives_no_clusters(texts: list[str]) -> None:
    assert Clusters.fit(texts) is None


def test_fewer_distinct_texts_than_clusters() -> None:
    clusters = Clusters.fit(["git push", "cargo test", "npm run"] * 2 * MIN_SAMPLES)
    assert clusters is not None
    assert 2 <= len(clusters.centroids) <= 3
