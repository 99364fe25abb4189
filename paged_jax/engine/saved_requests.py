"""Requests and their answers so far as plain values, and back.

Texts are not saved: the detokeniser and the stop strings are fed the same tokens again, which gives
the same text and the same state. Times are saved as ages, since clocks differ.
"""

from dataclasses import replace
from typing import Any

from paged_jax.engine.answers import Answer
from paged_jax.host.recording import request_from_json, request_to_json
from paged_jax.host.request import FinishReason, Request, Sequence, Status, TokenDelta
from paged_jax.outputs import ChoiceDelta, Logprob, PositionLogprobs
from paged_jax.text.tokenizer import Tokenizer

Facts = dict[str, Any]
TIMES = ("scheduled_s", "first_token_s", "last_token_s")


def save_request(request: Request, now_s: float, max_len: int) -> Facts:
    """Return a request as JSON can hold it.

    Args:
        max_len: tokens at which the engine ends every sequence.
    """
    max_tokens = min(request.max_tokens, max_len - len(request.prompt))
    plain = request_to_json(replace(request, max_tokens=max_tokens))
    return plain | {"age_s": now_s - request.arrival_s}


def load_request(facts: Facts, now_s: float, eos_ids: tuple[int, ...]) -> Request:
    """Return the request that `save_request` saved, with the ends of this model."""
    plain = {name: value for name, value in facts.items() if name != "age_s"}
    times = {"arrival_s": now_s - facts["age_s"], "eos_ids": list(eos_ids)}
    return request_from_json(plain | times)


def save_answer(answer: Answer, now_s: float) -> Facts:
    """Return what of an answer its tokens do not tell."""
    return {
        "ages": {name: _age(getattr(answer, name), now_s) for name in TIMES},
        "token_gaps_s": answer.token_gaps_s,
        "num_cached": answer.num_cached,
        "num_preemptions": answer.num_preemptions,
        "prompt_logprobs": _save_tables(answer.prompt_logprobs),
        "ended": [
            [s.index, s.output, answer.finish_reasons[s.index], s.stop_reason]
            for s in answer.sequences.values()
            if s.index in answer.finish_reasons
        ],
    }


def load_answer(
    facts: Facts, request: Request, tokenizer: Tokenizer, live: list[Sequence], now_s: float
) -> tuple[Answer, list[ChoiceDelta]]:
    """Return the answer as it was, and what its choices have told so far.

    Args:
        live: the request's unfinished sequences.
    """
    answer = Answer(request, tokenizer)
    for name in TIMES:
        setattr(answer, name, _age(facts["ages"][name], now_s))
    answer.token_gaps_s += facts["token_gaps_s"]
    answer.num_cached, answer.num_preemptions = facts["num_cached"], facts["num_preemptions"]
    answer.prompt_logprobs = _load_tables(facts["prompt_logprobs"], tokenizer)
    ended = [_ended(request, *fields) for fields in facts["ended"]]
    told = [_replay(answer, s) for s in (*ended, *live) if s.output]
    return answer, sorted(told, key=lambda delta: delta.index)


def _age(time_s: float | None, now_s: float) -> float | None:
    """From a time to an age, or back."""
    return None if time_s is None else now_s - time_s


def _ended(
    request: Request, index: int, output: list[int], reason: str, stop_reason: int | str | None
) -> Sequence:
    return Sequence(
        request,
        index,
        output=output,
        status=Status.FINISHED,
        finish_reason=FinishReason(reason),
        stop_reason=stop_reason,
    )


def _replay(answer: Answer, sequence: Sequence) -> ChoiceDelta:
    """Feed a sequence's tokens to its text once more."""
    index, reason = sequence.index, sequence.finish_reason
    grown, text, known = Sequence(answer.request, index), "", len(sequence.output)
    by_text = isinstance(sequence.stop_reason, str)  # then the text finds the end by itself
    for token in sequence.output:
        grown.output.append(token)
        is_end = len(grown.output) == known and not by_text
        delta = TokenDelta(grown, token, 0, reason if is_end else None)
        text += answer.choice(index).absorb(delta)[0]
    answer.sequences[index], answer.num_generated[index] = sequence, known
    if reason is not None:
        answer.finish_reasons[index] = reason.value
    finish = None if reason is None else reason.value
    return ChoiceDelta(
        index, text, tuple(sequence.output), None, finish, stop_reason=sequence.stop_reason
    )


def _save_tables(tables: list[PositionLogprobs | None] | None) -> list[Any] | None:
    if tables is None:
        return None
    return [
        None if table is None else [[token, e.logprob, e.rank] for token, e in table.items()]
        for table in tables
    ]


def _load_tables(
    tables: list[Any] | None, tokenizer: Tokenizer
) -> list[PositionLogprobs | None] | None:
    if tables is None:
        return None
    return [None if table is None else _load_table(table, tokenizer) for table in tables]


def _load_table(table: list[Any], tokenizer: Tokenizer) -> PositionLogprobs:
    def entry(token: int, logprob: float, rank: int) -> Logprob:
        return Logprob(logprob, rank, tokenizer.token_text(token), tokenizer.token_bytes(token))

    return {token: entry(token, logprob, rank) for token, logprob, rank in table}
