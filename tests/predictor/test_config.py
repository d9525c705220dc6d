"""Settings: command line, environment, defaults, and messages that name their source."""

from pathlib import Path

import pytest
from cachewise_predictor.config import Address, Config
from cachewise_predictor.errors import ConfigError


def test_the_command_line_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {
        "CACHEWISE_PREDICTOR_GRPC": "0.0.0.0:1",
        "CACHEWISE_PREDICTOR_DATA_DIR": "/data",
    }
    config = Config.load({"grpc": "[::1]:2", "http": None, "command": "serve"}, environ)
    assert config == Config(grpc=Address("::1", 2), data_dir=Path("/data"))
    assert str(config.grpc) == "[::1]:2"
    assert Config().trainer and not Config.load({"trainer": False}, {}).trainer
    assert not Config.load({}, {"CACHEWISE_PREDICTOR_TRAINER": "0"}).trainer
    assert str(Config().http) == "127.0.0.1:8090"


@pytest.mark.parametrize(
    ("arguments", "environ", "named"),
    [
        ({"grpc": "50051"}, {}, "--grpc"),
        ({"http": "host:99999"}, {}, "--http"),
        ({"http": ":80"}, {}, "--http"),
        ({"redis_url": "cache:6379"}, {}, "--redis-url"),
        ({}, {"CACHEWISE_PREDICTOR_GRPC": "x:y"}, "CACHEWISE_PREDICTOR_GRPC"),
        ({}, {"CACHEWISE_PREDICTOR_DATA_DIR": ""}, "CACHEWISE_PREDICTOR_DATA_DIR"),
        ({}, {"CACHEWISE_PREDICTOR_TRAINER": "maybe"}, "CACHEWISE_PREDICTOR_TRAINER"),
    ],
)
def test_a_bad_value_names_where_it_was_set(
    arguments: dict[str, object], environ: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        Config.load(arguments, environ)
