"""Errors that callers and operators see.

CacheWiseError
├── ConfigError      a setting has an unusable value; start-up stops
├── TraceError       a trace file or folder cannot be read
├── ModelError       a stored model is broken; it is refused and the present one stays
├── StoreError       the store does not answer; serving goes on from memory
└── TooManySessions  a stream announced more sessions than a replica can hold
"""

from __future__ import annotations

import grpc


class CacheWiseError(Exception):
    """The message says what to do; `status` is what a gRPC caller gets."""

    status = grpc.StatusCode.INTERNAL


class ConfigError(CacheWiseError):
    """The message names the setting."""


class TraceError(CacheWiseError):
    """The message names the path."""


class ModelError(CacheWiseError):
    """The message names what is wrong with the stored model."""


class StoreError(CacheWiseError):
    """The message carries the store client's own words."""

    status = grpc.StatusCode.UNAVAILABLE


class TooManySessions(CacheWiseError):
    """The message names the bound."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
