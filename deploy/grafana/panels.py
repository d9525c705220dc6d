"""What the dashboard shows: rows of panels, each with its PromQL queries.

Read from left to right and top to bottom it answers: does the link to the predictor work, what does
eviction cost, who waits, are the forecasts there in time and honest, does the model learn, do all
tool calls arrive, and what do users feel of it. Counters are shown as rates over Grafana's
$__rate_interval (four scrapes), histograms as quantiles over the same.
"""

from __future__ import annotations

from dataclasses import dataclass

RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A graph over time, or (is_stat) one big number. unit is a Grafana unit id."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    is_stat: bool = False
    is_stacked: bool = False


@dataclass(frozen=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: tuple[Panel, ...]


def per_second(metric: str, by: str = "") -> str:
    """The rate of a counter, summed over everything or by a label."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{RATE}))"


def ratio(part: str, whole: str) -> str:
    """One counter's rate as a share of another's."""
    return f"{per_second(part)} / {per_second(whole)}"


def quantile(q: float, histogram: str, by: str = "") -> str:
    """A quantile of a histogram, over everything or by a label."""
    return (
        f"histogram_quantile({q}, {per_second(f'{histogram}_bucket', f'le, {by}' if by else 'le')})"
    )


def p50_p99(histogram: str, name: str = "") -> tuple[Query, Query]:
    """Median and 99th percentile of a histogram."""
    prefix = f"{name} " if name else ""
    return (
        Query(quantile(0.5, histogram), f"{prefix}p50"),
        Query(quantile(0.99, histogram), f"{prefix}p99"),
    )


VLLM_HIT_RATE = ratio("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")

OVERVIEW = Row(
    "Overview",
    (
        Panel(
            "Predictor connected",
            "1 if every engine has its forecast stream. Without it the order is stock vLLM's.",
            "bool_yes_no",
            (Query("min(cachewise_predictor_connected)", "connected"),),
            is_stat=True,
        ),
        Panel(
            "Store up",
            "1 if every predictor reaches its store. At 0 it serves from memory.",
            "bool_yes_no",
            (Query("min(cachewise_predictor_store_up)", "up"),),
            is_stat=True,
        ),
        Panel(
            "Prefix hit rate",
            "Share of prompt tokens that were found in the KV cache, by vLLM's own counters.",
            "percentunit",
            (
                Query(
                    VLLM_HIT_RATE,
                    "hit rate",
                ),
            ),
            is_stat=True,
        ),
        Panel(
            "KV cache in use",
            "Blocks that running requests hold, as a share of the pool (the fullest engine).",
            "percentunit",
            (Query("max(vllm:kv_cache_usage_perc)", "used"),),
            is_stat=True,
        ),
        Panel(
            "Forecasts per turn",
            "Forecasts that arrived in the engines, for each turn that ended.",
            "percentunit",
            (
                Query(
                    "sum(increase(cachewise_forecasts_received_total[$__range]))"
                    " / sum(increase(cachewise_turns_total[$__range]))",
                    "forecasts per turn",
                ),
            ),
            is_stat=True,
        ),
        Panel(
            "Sessions",
            "Sessions that the engines know.",
            "short",
            (Query("sum(cachewise_sessions)", "sessions"),),
            is_stat=True,
        ),
    ),
)

CACHE = Row(
    "Evictions and what they cost",
    (
        Panel(
            "Evicted blocks",
            "Cached blocks that were handed to another session, by the order that chose them.",
            "short",
            (Query(per_second("cachewise_evicted_blocks_total", "order"), "{{order}} order"),),
            is_stacked=True,
        ),
        Panel(
            "Recomputed tokens",
            "Prompt tokens computed again that the session had computed before.",
            "short",
            (
                Query(per_second("cachewise_prompt_tokens_total"), "prompt"),
                Query(per_second("cachewise_hit_tokens_total"), "found in the cache"),
                Query(per_second("cachewise_recomputed_tokens_total"), "recomputed"),
            ),
        ),
        Panel(
            "Hit rate",
            "Share of prompt tokens found in the cache, as the scheduler and as vLLM count it.",
            "percentunit",
            (
                Query(
                    ratio("cachewise_hit_tokens_total", "cachewise_prompt_tokens_total"),
                    "scheduler",
                ),
                Query(
                    VLLM_HIT_RATE,
                    "vLLM",
                ),
            ),
        ),
        Panel(
            "KV blocks",
            "free: empty; cached: of use, and evictable; protected: claimed; used: by requests.",
            "short",
            (Query("sum by (state) (cachewise_blocks)", "{{state}}"),),
            is_stacked=True,
        ),
    ),
)

CLAIMS = Row(
    "Retention claims",
    (
        Panel(
            "Claims asked for",
            "What sessions that ask for a claim are told; a deferred one is decided later.",
            "short",
            (Query(per_second("cachewise_claims_asked_total", "outcome"), "{{outcome}}"),),
            is_stacked=True,
        ),
        Panel(
            "Claims ended",
            "How claims end. Broken: active requests needed the blocks. Evicted must never happen.",
            "short",
            (Query(per_second("cachewise_claims_ended_total", "outcome"), "{{outcome}}"),),
            is_stacked=True,
        ),
        Panel(
            "Claims and protected blocks",
            "Claims that hold now, and the blocks that they keep while no request uses them.",
            "short",
            (
                Query("sum(cachewise_claims)", "claims"),
                Query('sum(cachewise_blocks{state="protected"})', "protected blocks"),
            ),
        ),
    ),
)

ACTIVE = Row(
    "Who is active",
    (
        Panel(
            "Parked sessions",
            "Sessions whose request waits until there is room for all of their blocks.",
            "short",
            (Query("sum by (instance) (cachewise_parked_sessions)", "{{instance}}"),),
        ),
        Panel(
            "Sessions taken out of the active set",
            "Displaced: for another that had waited. Left: the set had outgrown the pool.",
            "short",
            (Query(per_second("cachewise_sessions_parked_total", "reason"), "{{reason}}"),),
            is_stacked=True,
        ),
        Panel(
            "Guard",
            "1 while forecasts have no say, since they cost over 1.25 times what LRU would have.",
            "short",
            (Query("max by (instance) (cachewise_guard_follows_lru)", "{{instance}}"),),
        ),
        Panel(
            "Mode observe: what mode full would do otherwise",
            "Requests held back or reordered, and evicted blocks that it would have kept.",
            "short",
            (Query(per_second("cachewise_observed_total", "difference"), "{{difference}}"),),
        ),
    ),
)

WAITS = Row(
    "Who waits",
    (
        Panel(
            "Time in the waiting queue",
            "Of the requests that were scheduled.",
            "s",
            p50_p99("cachewise_queue_seconds"),
        ),
        Panel(
            "Oldest waiting request",
            "Age of the request that has waited longest: the order must not starve it.",
            "s",
            (Query("max by (instance) (cachewise_waiting_age_seconds)", "{{instance}}"),),
        ),
        Panel(
            "Requests",
            "Waiting and running requests.",
            "short",
            (
                Query("sum(cachewise_waiting_requests)", "waiting"),
                Query("sum(vllm:num_requests_running)", "running"),
            ),
        ),
        Panel(
            "Scheduled, overtaken, preempted",
            "Requests scheduled, times that one was overtaken, preemptions, and requests that name "
            "a class or tenant that is none.",
            "reqps",
            (
                Query(per_second("cachewise_requests_scheduled_total"), "scheduled"),
                Query(per_second("cachewise_overtakes_total"), "overtaken"),
                Query(per_second("vllm:num_preemptions_total"), "preempted"),
                Query(
                    per_second("cachewise_standings_malformed_total"), "malformed class or tenant"
                ),
            ),
        ),
        Panel(
            "Sessions by state",
            "running and waiting: with a request in the engine; idle: in a tool call, or gone.",
            "short",
            (
                Query("sum by (state) (cachewise_sessions)", "{{state}}"),
                Query("sum(cachewise_sessions_with_forecast)", "with a forecast"),
            ),
        ),
    ),
)

FORECASTS = Row(
    "Forecasts",
    (
        Panel(
            "Delivered forecasts by source",
            "Forecasts that arrived in the engines, by the curve that they come from.",
            "short",
            (
                Query(
                    per_second("cachewise_forecasts_received_total", "source"),
                    "{{source}}",
                ),
                Query(per_second("cachewise_forecasts_malformed_total"), "malformed"),
                Query(
                    per_second("cachewise_forecasts_dropped_total") + " or vector(0)",
                    "of no use on arrival",
                ),
            ),
            is_stacked=True,
        ),
        Panel(
            "Forecast delay",
            "From the end of a turn in the engine to the arrival of its forecast.",
            "s",
            p50_p99("cachewise_forecast_delay_seconds"),
        ),
        Panel(
            "Forecast median and real waits",
            "Medians and 90th percentiles of forecast waits, and of those that came about.",
            "s",
            (
                Query(quantile(0.5, "cachewise_predictor_forecast_p50_seconds"), "forecast p50"),
                Query(quantile(0.9, "cachewise_predictor_forecast_p50_seconds"), "forecast p90"),
                Query(quantile(0.5, "cachewise_predictor_wait_seconds"), "wait p50"),
                Query(quantile(0.9, "cachewise_predictor_wait_seconds"), "wait p90"),
            ),
        ),
        Panel(
            "Made and sent by the predictor",
            "Forecasts made by source, and forecasts pushed to engines.",
            "short",
            (
                Query(
                    per_second("cachewise_predictor_forecasts_total", "source"),
                    "made from {{source}}",
                ),
                Query(per_second("cachewise_predictor_forecasts_sent_total"), "sent"),
            ),
        ),
    ),
)

HONESTY = Row(
    "Are forecasts honest",
    (
        Panel(
            "Waits within their forecast",
            "Share of the waits that were at most a quantile of their forecast: honest is at it.",
            "percentunit",
            tuple(
                Query(
                    ratio(
                        f'cachewise_predictor_covered_forecasts_total{{quantile="{quantile}"}}',
                        "cachewise_predictor_checked_forecasts_total",
                    ),
                    f"at most P{100 * quantile:.0f}",
                )
                for quantile in (0.5, 0.9, 0.99)
            ),
        ),
        Panel(
            "Where waits fall",
            "Waits by the chance that they were given to be shorter, in tenths: honest is even.",
            "short",
            (Query(per_second("cachewise_predictor_forecast_pit_total", "tenth"), "{{tenth}}"),),
            is_stacked=True,
        ),
        Panel(
            "Waits within their median, by tool",
            "As on the left, for P50, per tool. Far from half: its waits have changed.",
            "percentunit",
            (
                Query(
                    per_second(
                        'cachewise_predictor_covered_forecasts_total{quantile="0.5"}', "tool"
                    )
                    + " / "
                    + per_second("cachewise_predictor_checked_forecasts_total", "tool"),
                    "{{tool}}",
                ),
            ),
        ),
    ),
)

LEARNING = Row(
    "Does the model learn",
    (
        Panel(
            "Trainings in an hour",
            "Models trained, and what became of them; drift: changes seen in the waits of a tool.",
            "short",
            tuple(
                Query(f"max(increase(cachewise_predictor_trainer_{name}_total[1h]))", legend)
                for name, legend in (
                    ("trainings", "trained"),
                    ("promotions", "promoted"),
                    ("refusals", "refused"),
                    ("failures", "failed"),
                    ("drifts", "drift"),
                    ("spoiled", "left out as random"),
                )
            ),
        ),
        Panel(
            "Score of the last new model",
            "Mean CRPS on intervals that no model learns from, beside the serving one's; lower "
            "is better.",
            "short",
            (
                Query("max(cachewise_predictor_trainer_candidate_score)", "new"),
                Query("max(cachewise_predictor_trainer_serving_score)", "serving then"),
            ),
        ),
        Panel(
            "What it learns from",
            "Intervals in the serving model, in the trainer's window (reserved: only to judge "
            "by), not read yet, and those that came twice.",
            "short",
            (
                Query("max(cachewise_predictor_model_samples)", "serving model"),
                Query("max(cachewise_predictor_trainer_window_intervals)", "window"),
                Query("max(cachewise_predictor_trainer_reserved_intervals)", "reserved"),
                Query("max(cachewise_predictor_trainer_lag_intervals)", "not read yet"),
                Query("max(cachewise_predictor_trainer_duplicates_total)", "came twice"),
            ),
        ),
        Panel(
            "Curves of the model",
            "By level; crowded out: without one of their own, since the model is full.",
            "short",
            (
                Query("max by (level) (cachewise_predictor_model_groups)", "{{level}}"),
                Query(
                    "max by (level) (cachewise_predictor_model_groups_crowded_out)",
                    "{{level}} crowded out",
                ),
            ),
        ),
        Panel(
            "Trainer",
            "1 if some trainer has the lease, and the processor time of its last training.",
            "short",
            (
                Query("max(cachewise_predictor_trainer_up)", "up"),
                Query("max(cachewise_predictor_trainer_training_seconds)", "last training, s"),
            ),
        ),
        Panel(
            "Time since the last training",
            "Of any predictor's trainer; before the first one it counts from 1970.",
            "s",
            (
                Query(
                    "time() - max(cachewise_predictor_trainer_last_training_timestamp_seconds)",
                    "ago",
                ),
            ),
        ),
    ),
)

EVENTS = Row(
    "Tool calls and events",
    (
        Panel(
            "Tool calls",
            "Seen in responses, and arrived at the predictor: equal when all is well.",
            "short",
            (
                Query(per_second("cachewise_tool_calls_total"), "in responses"),
                Query(per_second("cachewise_predictor_tool_calls_total"), "at the predictor"),
            ),
        ),
        Panel(
            "Turns by outcome",
            "How turns end: in a tool call, waiting for a person, cut short, or aborted.",
            "short",
            (Query(per_second("cachewise_turns_total", "outcome"), "{{outcome}}"),),
            is_stacked=True,
        ),
        Panel(
            "Events",
            "Events that engines report; dropped ones are lost, failed ones are sent again.",
            "short",
            (
                Query(per_second("cachewise_events_total", "kind"), "{{kind}}"),
                Query(per_second("cachewise_events_dropped_total"), "dropped"),
                Query(per_second("cachewise_events_failed_total"), "failed to send"),
                Query(per_second("cachewise_predictor_duplicate_events_total"), "sent twice"),
                Query(per_second("cachewise_predictor_rejected_events_total"), "rejected"),
            ),
        ),
        Panel(
            "Intervals",
            "Open waits, and how they end: the session came back (finished) or did not (censored).",
            "short",
            (
                Query("sum(cachewise_predictor_open_intervals)", "open"),
                Query(
                    per_second("cachewise_predictor_intervals_total", "end"), "{{end}} per second"
                ),
            ),
        ),
        Panel(
            "Predictor calls, p99",
            "99th percentile of the predictor's gRPC calls.",
            "s",
            (Query(quantile(0.99, "cachewise_predictor_rpc_seconds", "method"), "{{method}}"),),
        ),
        Panel(
            "Engines watching",
            "Forecast streams that are open.",
            "short",
            (Query("sum(cachewise_predictor_watchers)", "streams"),),
        ),
        Panel(
            "Left out",
            "Tool calls beyond the bound of a turn, arguments cut to 400 characters, changes of "
            "sessions given up for want of a store, and stored models that were broken.",
            "short",
            (
                Query(per_second("cachewise_predictor_dropped_tool_calls_total"), "tool calls"),
                Query(per_second("cachewise_predictor_cut_arguments_total"), "arguments cut"),
                Query(per_second("cachewise_predictor_dropped_changes_total"), "changes"),
                Query(per_second("cachewise_predictor_refused_models_total"), "models"),
            ),
        ),
    ),
)

LATENCY = Row(
    "What users feel (vLLM's own metrics)",
    (
        Panel(
            "Time to first token",
            "From the arrival of a request to its first token.",
            "s",
            p50_p99("vllm:time_to_first_token_seconds"),
        ),
        Panel(
            "Request latency",
            "From the arrival of a request to its last token.",
            "s",
            p50_p99("vllm:e2e_request_latency_seconds"),
        ),
        Panel(
            "Tokens",
            "Prompt and generated tokens per second.",
            "short",
            (
                Query(per_second("vllm:prompt_tokens_total"), "prompt"),
                Query(per_second("vllm:generation_tokens_total"), "generated"),
            ),
        ),
    ),
)

ROWS = (OVERVIEW, CACHE, CLAIMS, ACTIVE, WAITS, FORECASTS, HONESTY, LEARNING, EVENTS, LATENCY)
