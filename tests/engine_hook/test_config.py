from __future__ import annotations

import pytest
from cachewise_engine_hook.config import Config, ConfigError


def test_the_environment_wins_over_additional_config_and_both_over_defaults() -> None:
    given = {"cachewise": {"predictor": "a:1", "max_overtakes": 7, "fallback": True}}
    config = Config.load(given, {"CACHEWISE_PREDICTOR": "b:2", "CACHEWISE_MAX_WAIT_S": "2.5"})
    assert (config.predictor, config.max_overtakes, config.max_wait_s) == ("b:2", 7, 2.5)
    assert config.fallback is True and config.tenant == "default"


def test_other_plugins_settings_are_none_of_our_business() -> None:
    assert Config.load({"other": {"x": 1}}, {}).predictor == ""
    assert Config.load(None, {}) == Config.load({}, {})


@pytest.mark.parametrize(
    ("given", "environ", "message"),
    [
        ({"cachewise": {"predictr": "x"}}, {}, "no setting 'predictr'.*predictor"),
        ({"cachewise": {"max_overtakes": "many"}}, {}, "cachewise.max_overtakes: 'many'"),
        ({"cachewise": {"max_overtakes": 0}}, {}, "max_overtakes must be at least 1"),
        ({"cachewise": {"max_overtakes": True}}, {}, "not a int"),
        ({"cachewise": {"predictor": None}}, {}, "cachewise.predictor: None is not a str"),
        ({"cachewise": [1]}, {}, "must be an object"),
        ({}, {"CACHEWISE_METRICS_PORT": "99999"}, "metrics_port must be a port number"),
        ({}, {"CACHEWISE_MAX_WAIT_S": "nan"}, "CACHEWISE_MAX_WAIT_S"),
        ({"cachewise": {"claim_share": 1.1}}, {}, "claim_share must be from 0 to 1, not 1.1"),
        ({}, {"CACHEWISE_TRACE_SHARE": "-0.1"}, "trace_share must be from 0 to 1"),
        ({}, {"CACHEWISE_RECOMPUTE_COST_WEIGHT": "2"}, "recompute_cost_weight must be from 0 to 1"),
        ({}, {"CACHEWISE_CLAIM_TTL_S": "-1"}, "claim_ttl_s must be at least 0"),
        ({}, {"CACHEWISE_FALLBACK": "maybe"}, "CACHEWISE_FALLBACK"),
        ({"cachewise": {"tenant_weights": {"a": "x"}}}, {}, "tenant_weights.a: 'x' is not a float"),
        ({"cachewise": {"tenant_weights": [1]}}, {}, "is not an object of numbers by name"),
        ({}, {"CACHEWISE_TENANT_WEIGHTS": "a=1"}, "CACHEWISE_TENANT_WEIGHTS: 'a=1' is not"),
        ({}, {"CACHEWISE_TENANT_WEIGHTS": '{"a": 0}'}, "tenant_weights must be above 0"),
    ],
)
def test_a_bad_setting_is_named_with_its_source(given, environ, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.load(given, environ)


def test_weights_come_as_an_object_or_as_its_text() -> None:
    given = {"cachewise": {"tenant_weights": {"a": 2, "b": 0.5}}}
    environ = {"CACHEWISE_TENANT_WEIGHTS": '{"a": 2, "b": 0.5}'}
    assert Config.load(given, {}).tenant_weights == {"a": 2.0, "b": 0.5}
    assert Config.load(None, environ) == Config.load(given, {})


@pytest.mark.parametrize("value", ["h:1", "10.0.0.1:50051", "[::1]:50051", "a.b-c_d.e:65535"])
def test_a_predictor_is_a_host_and_a_port(value: str) -> None:
    assert Config.load(None, {"CACHEWISE_PREDICTOR": value}).predictor == value


@pytest.mark.parametrize(
    "value",
    [
        "h",
        "h:",
        ":1",
        "h:0",
        "h:65536",
        "http://h:1",
        "h:1/x",
        "::1:50051",
        "h :1",
        "h:1\n",
        "h:\u0661",
    ],
)
def test_another_form_of_predictor_stops_start_up(value: str) -> None:
    with pytest.raises(ConfigError, match="predictor must be host:port, not"):
        Config.load({"cachewise": {"predictor": value}}, {})
