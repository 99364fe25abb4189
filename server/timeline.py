"""The times of one request, as its answer tells them on request; vLLM's names where it has any."""

from paged_jax.outputs import RequestMetrics
from server.wire import Json


def timeline(metrics: RequestMetrics, *, num_cached: int) -> Json:
    """Return milliseconds of each stage; stages that were not reached are absent.

    Args:
        num_cached: prompt tokens served from the prefix cache.
    """
    arrival, scheduled = metrics.arrival_time, metrics.first_scheduled_time
    first, last = metrics.first_token_time, metrics.last_token_time
    spans = {
        "queue_time_ms": (arrival, scheduled),
        "prefill_time_ms": (scheduled, first),
        "time_to_first_token_ms": (scheduled, first),
        "decode_time_ms": (first, last),
        "generation_time_ms": (first, last),
    }
    told: Json = {
        name: 1000 * (end - start)
        for name, (start, end) in spans.items()
        if start is not None and end is not None
    }
    count = metrics.num_generation_tokens
    if count > 1 and told.get("decode_time_ms"):
        told["mean_itl_ms"] = told["decode_time_ms"] / (count - 1)
    if scheduled is not None and last is not None and last > scheduled:
        told["tokens_per_second"] = count / (last - scheduled)
    counts = {"num_preemptions": metrics.num_preemptions, "cached_tokens": num_cached}
    return told | counts | {"completion_tokens": count}
