"""Groups of similar tool-call arguments: TF-IDF vectors around k-means centroids.

    words      runs of letters, and numbers; at most MAX_FEATURES of them, each in MIN_TEXTS texts:
               what occurs once may be private, and tells nothing
    vector     counts of the words, log-damped, weighted by rarity (idf), of length 1
    clusters   MiniBatchKMeans; those with fewer than MIN_SAMPLES members are dissolved
    assign     the nearest centroid; none if the arguments have no known word, or if they are
               farther away than nearly all (REACH) that the cluster was made of

Fitting is scikit-learn's; assigning is numpy, and the tests compare both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .survival import Floats

MAX_CLUSTERS = 100
MAX_FEATURES = 5_000
MIN_TEXTS = 3
MIN_SAMPLES = 30
REACH = 0.99
_MAX_FITTED = 20_000
"""Samples beyond these are assigned, not fitted: they no longer move centroids."""

_WORD = re.compile(r"[^\W\d_]{2,40}|\d{1,9}")


def words(text: str) -> list[str]:
    """The words of arguments, in small letters."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True, eq=False)
class Clusters:
    """Row c of `centroids` and `reach_sq` (squared distances) is cluster c; columns are words.

    centroids: in the order of Fortran, so that a text's few columns are read in one piece each.
    """

    vocabulary: tuple[str, ...]
    idf: Floats
    centroids: Floats
    reach_sq: Floats

    @classmethod
    def fit(cls, texts: Sequence[str], most: int = MAX_CLUSTERS, seed: int = 0) -> Clusters | None:
        """None where there is nothing to tell apart."""
        # Loading scikit-learn takes a second, and serving does not need it. One thread: several
        # that wait for each other are slower on a busy machine.
        from sklearn.cluster import MiniBatchKMeans
        from sklearn.feature_extraction.text import TfidfVectorizer
        from threadpoolctl import threadpool_limits

        vectorizer = TfidfVectorizer(
            analyzer=words,
            max_features=MAX_FEATURES,
            min_df=MIN_TEXTS,
            sublinear_tf=True,
            dtype=np.float32,
        )
        count = min(most, len(texts) // MIN_SAMPLES, len(set(texts)))
        if count < 2:
            return None
        try:
            vectors = vectorizer.fit_transform(texts)
        except ValueError:  # no word is in enough of the texts
            return None
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(len(texts))[:_MAX_FITTED]
        kmeans = MiniBatchKMeans(count, random_state=seed, batch_size=1_024, n_init=3)
        with threadpool_limits(1):
            kmeans.fit(vectors[chosen])
            members = kmeans.predict(vectors)
        centroids = kmeans.cluster_centers_.astype(np.float64)
        distances = kmeans.transform(vectors)[np.arange(len(texts)), members]
        kept = [c for c in range(count) if (members == c).sum() >= MIN_SAMPLES]
        reach = np.array([np.quantile(distances[members == c], REACH) for c in kept])
        if not kept:
            return None
        names = tuple(str(name) for name in vectorizer.get_feature_names_out())
        reach_sq = ((reach + 1e-3) ** 2).astype(np.float64)
        kept_centroids = np.asfortranarray(centroids[kept])
        return cls(names, vectorizer.idf_.astype(np.float64), kept_centroids, reach_sq)

    def vector(self, text: str) -> tuple[list[int], Floats]:
        """The columns that are not zero, and their values."""
        counts = Counter(map(self._columns.get, words(text)))
        counts.pop(None, None)
        columns = [column for column in counts if column is not None]
        values = (1 + np.log(np.array(list(counts.values()), float))) * self.idf[columns]
        return columns, values / np.sqrt(values @ values) if columns else values

    def assign(self, text: str) -> int | None:
        """The cluster of these arguments, if they belong to one."""
        columns, values = self.vector(text)
        if not columns:
            return None
        distances_sq = self._lengths_sq + 1 - 2 * (values @ self.centroids.T[columns])
        nearest = int(distances_sq.argmin())
        return nearest if distances_sq[nearest] <= self.reach_sq[nearest] else None

    def terms(self, cluster: int, most: int) -> list[str]:
        """The words that weigh most in a cluster."""
        heaviest = np.argsort(-self.centroids[cluster])[:most]
        return [self.vocabulary[c] for c in heaviest if self.centroids[cluster, c] > 0]

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {word: column for column, word in enumerate(self.vocabulary)}

    @cached_property
    def _lengths_sq(self) -> Floats:
        return np.asarray((self.centroids**2).sum(axis=1))
