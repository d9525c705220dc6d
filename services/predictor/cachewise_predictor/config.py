"""Settings of the predictor: command line, else environment, else the defaults below."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from .errors import ConfigError

ENVIRONMENT_PREFIX = "CACHEWISE_PREDICTOR_"


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Config:
    """Field `data_dir` is set by --data-dir and by CACHEWISE_PREDICTOR_DATA_DIR, and so on."""

    redis_url: str = ""
    """Redis or Valkey to use: redis://, rediss:// or unix://. Empty: an embedded Valkey."""

    data_dir: Path = Path(".cachewise")
    """Folder of the embedded Valkey."""

    grpc: Address = Address("127.0.0.1", 50_051)
    """Where engines report events and get forecasts. Port 0: any free one."""

    http: Address = Address("127.0.0.1", 8_090)
    """Health, metrics and the model's page."""

    trainer: bool = True
    """Whether `serve` starts a trainer beside itself; of several on a store one trains."""

    @classmethod
    def load(cls, arguments: Mapping[str, object], environ: Mapping[str, str]) -> Config:
        """arguments: by field name, None where the command line says nothing; others are ignored.

        Raises ConfigError, naming the option or variable.
        """
        given: dict[str, object] = {}
        for name in (field.name for field in fields(cls)):
            variable = ENVIRONMENT_PREFIX + name.upper()
            option = "--" + name.replace("_", "-")
            if arguments.get(name) is not None:
                given[name] = _cast(name, option, str(arguments[name]))
            elif variable in environ:
                given[name] = _cast(name, variable, environ[variable])
        return cls(**given)  # type: ignore[arg-type]


def _cast(name: str, source: str, text: str) -> object:
    if name in ("grpc", "http"):
        return _address(source, text)
    if name == "trainer":
        return _switch(source, text)
    if name == "data_dir":
        if not text:
            raise ConfigError(f"{source}: give a folder")
        return Path(text)
    if text and not text.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError(f"{source} must begin with redis://, rediss:// or unix://")
    return text


def _switch(source: str, text: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in known:
        raise ConfigError(f"{source}: {text!r} is not true or false")
    return known[text.lower()]


def _address(source: str, text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(
            f"{source}: {text!r} is not HOST:PORT, e.g. 127.0.0.1:50051 or [::]:50051"
        )
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
