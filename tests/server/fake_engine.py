"""A tokenizer of bytes and an engine that repeats the prompt: answers can be worked out by hand.

Token ids 0..255 are bytes, 256 is the end token `<|end|>`. Choice i of a prompt p generates p[i],
p[i + 1], ... round and round; it ends with "length" after max_tokens, or with "stop" at the end
token (unless `ignore_eos`) or at one of `stop_token_ids`. The log-probability of token t is -t/64
(of `!` minus infinity); the likeliest alternatives are 0, 1, 2, ... Embeddings are the first 8 ids,
round and round.
"""

import asyncio
import codecs
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paged_jax.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from paged_jax.host.block_map import BlockMap, SequenceView
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.trace import EngineObserver, EngineStats, PoolUsage, RequestRecord
from paged_jax.outputs import (
    Captures,
    ChoiceDelta,
    Logprob,
    PositionLogprobs,
    RequestDelta,
    RequestMetrics,
)
from paged_jax.text.chat_template import normalise_messages

END = 256
LIMIT = 512
MODEL = ModelConfig("llama", END + 1, 1, 8, 8, 1, 1, 8, LIMIT, eos_token_ids=(END,))


class ByteTokenizer:
    """One token a byte, and `<|end|>`."""

    size = END + 1

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        parts = text.split("<|end|>")
        ids = list(parts[0].encode())
        for part in parts[1:]:
            ids += [END, *part.encode()]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        end = b"" if skip_special_tokens else b"<|end|>"
        raw = b"".join(end if token == END else bytes([token]) for token in ids)
        return raw.decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return b"<|end|>" if token == END else bytes([token])

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the tools' names, the variables, the messages, and `assistant:`.

        A message is its role, a colon, its reasoning, content and calls, and a semicolon.
        """
        text = "".join(tool["function"]["name"] + ";" for tool in tools or ())
        text += "".join(f"{name}={value};" for name, value in (variables or {}).items())
        for message in normalise_messages(messages):
            calls = [call["function"] for call in message.get("tool_calls", ())]
            said = [message.get("reasoning_content", ""), message["content"]]
            said += [f"{call['name']}{json.dumps(call['arguments'])}" for call in calls]
            text += f"{message['role']}:{''.join(said)};"
        if continue_final_message:
            return text[:-1]
        return text + ("assistant:" if add_generation_prompt else "")


class FakeEngine:
    """Has the interface of AsyncEngine.

    Attributes:
        step_s: pause before each token.
        fail_after: tokens after which a request fails, and the engine with it.
        running: ids of the requests being answered.
        aborted: ids of the requests whose generator was closed early.
        num_yielded: deltas taken by consumers.
        num_maps: how often its blocks were looked at.
    """

    def __init__(self, *, step_s: float = 0.0, policy: str = "fcfs"):
        limits = SchedulerConfig(8, 64, LIMIT, "priority" if policy == "priority" else "fcfs")
        self.config = EngineConfig(MODEL, CacheConfig(65, 16), limits, "fake")
        self.tokenizer = ByteTokenizer()
        self.default_sampling: dict[str, object] = {}
        self.is_healthy, self.is_draining = True, False
        self.error: str | None = None
        self.busy_s = 0.0
        self.step_s, self.fail_after = step_s, 10**9
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.asked: list[tuple[SamplingParams, int, str | None]] = []
        self.num_yielded = self.num_maps = 0
        self._doomed = False
        self._ended: set[str] = set()
        self._observers: list[EngineObserver] = []
        self._stats = EngineStats(usage=PoolUsage(64, 0, 0))

    def add_observer(self, observer: EngineObserver) -> None:
        self._observers.append(observer)

    def stats(self) -> EngineStats:
        usage = PoolUsage(64, 16 * bool(self.running), 0)
        return replace(self._stats, num_running=len(self.running), usage=usage)

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def check(self, prompt: Sequence[int], params: SamplingParams) -> None:
        if not prompt:
            raise InvalidRequest("prompt must hold at least one token", "prompt")
        if not all(0 <= token <= END for token in prompt):
            raise InvalidRequest("prompt is out of vocabulary", "prompt")
        if len(prompt) >= LIMIT:
            raise InvalidRequest(f"the limit is {LIMIT}, the prompt has {len(prompt)}", "prompt")

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestDelta, None]:
        assert request_id not in self.running
        self.check(prompt, params)
        self.running.add(request_id)
        self.asked.append((params, priority, cache_salt))
        is_finished = False
        try:
            answers = [_Answer(index, prompt, params) for index in range(params.n)]
            while not is_finished:
                await asyncio.sleep(self.step_s)
                delta = self._step(request_id, answers)
                is_finished = delta.finished
                self.num_yielded += 1
                yield delta
        finally:
            self.running.discard(request_id)
            self._count(request_id, prompt, params, is_finished)

    def _step(self, request_id: str, answers: list["_Answer"]) -> RequestDelta:
        if answers[0].num_tokens >= self.fail_after:
            self.is_healthy, self.error = False, "the engine failed: Boom"
            return RequestDelta(request_id, (), True, error=self.error)
        if self._doomed or request_id in self._ended:
            choices = tuple(answer.aborted() for answer in answers if not answer.is_finished)
            return RequestDelta(request_id, choices, True)
        first = answers[0]
        tables = first.prompt_tables() if not first.num_tokens else None
        choices = tuple(answer.step() for answer in answers if not answer.is_finished)
        is_finished = all(answer.is_finished for answer in answers)
        cached = (len(first.prompt) - 1) // 16 * 16
        times = RequestMetrics(0.0, 1.0, 3.0, 9.0, first.num_tokens, 1) if is_finished else None
        captures = first.captures() if is_finished else None
        embedding = None
        if is_finished and first.params.pooling is not None:
            embedding = tuple(float(token) for token in (first.prompt * 8)[:8])
        return RequestDelta(
            request_id, choices, is_finished, cached, tables, times, captures, embedding=embedding
        )

    def _count(
        self, request_id: str, prompt: Sequence[int], params: SamplingParams, is_finished: bool
    ) -> None:
        if not is_finished:
            self.aborted.append(request_id)
        reason = "length" if is_finished else "abort"
        stats = self._stats
        self._stats = replace(stats, prompt_tokens=stats.prompt_tokens + len(prompt))
        record = RequestRecord(
            request_id, params.n, len(prompt), 0, 4, 4, 4, 0, (reason,) * params.n,
            0.0, 1.0, 3.0, 9.0, 10.0, (2.0, 2.0, 2.0),
        )  # fmt: skip
        for observer in self._observers:
            observer.on_finish(record)

    def abort(self, request_id: str) -> None:
        self._ended.add(request_id)

    async def block_map(self) -> BlockMap:
        """Each request holds a block, and all share another, which is cached; so is a third."""
        self.num_maps += 1
        names = sorted(self.running)
        views = tuple(SequenceView(name, 0, "running", 20, 4, 23, 16, 2, 0) for name in names)
        refs = (len(names), 0, *(1 for _ in names), *(0 for _ in range(62 - len(names))))
        owners = (0 if names else -1, -1, *range(len(names)), *(-1 for _ in names), *([-1] * 62))
        cached = (True, True, *(False for _ in range(62)))
        return BlockMap(64, 16, refs, cached, owners[:64], views, 7)

    async def reset_prefix_cache(self) -> bool:
        return not self.running

    async def drain(self, timeout_s: float) -> None:
        self.is_draining = True
        for _ in range(int(timeout_s / 0.02)):
            if not self.running:
                return
            await asyncio.sleep(0.02)
        self._doomed = True
        while self.running:
            await asyncio.sleep(0.02)


class _Answer:
    """One choice being made."""

    def __init__(self, index: int, prompt: Sequence[int], params: SamplingParams):
        self.prompt, self.num_tokens, self.is_finished = list(prompt), 0, False
        self._index, self.params = index, params
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._max_tokens = params.max_tokens or LIMIT - len(prompt)

    def step(self) -> ChoiceDelta:
        params = self.params
        token = self.prompt[(self._index + self.num_tokens) % len(self.prompt)]
        self.num_tokens += 1
        is_end = token == END and not params.ignore_eos
        reason, stop = None, None
        if is_end or token in params.stop_ids:
            reason, stop = "stop", None if is_end else token
        elif self.num_tokens >= self._max_tokens:
            reason = "length"
        self.is_finished = reason is not None
        raw = bytes([token]) if token < END and reason != "stop" else b""
        text = self._decoder.decode(raw, final=self.is_finished)
        tables = None if params.logprobs is None else (table_of(token, params.logprobs),)
        return ChoiceDelta(self._index, text, (token,), tables, reason, stop)

    def aborted(self) -> ChoiceDelta:
        self.is_finished = True
        return ChoiceDelta(self._index, "", (), None, "abort")

    def captures(self) -> Captures | None:
        """The stream is zeros, and every position gives all to the first."""
        taps = self.params.taps
        if taps is None or not taps.captures:
            return None
        count = len(taps.positions or self.prompt)
        first = np.eye(1, len(self.prompt), dtype=np.float32)
        return Captures(
            tuple(taps.positions or range(count)),
            {layer: np.zeros((count, 8), np.float32) for layer in taps.residual},
            {layer: np.repeat(first[None], count, axis=0) for layer in taps.attention},
        )

    def prompt_tables(self) -> tuple[PositionLogprobs | None, ...] | None:
        count = self.params.prompt_logprobs
        if count is None:
            return None
        return (None, *(table_of(token, count) for token in self.prompt[1:]))


def table_of(token: int, count: int) -> PositionLogprobs:
    """The chosen token, then tokens 0, 1, 2, ... as the likeliest."""
    ids = [token, *range(count)]
    return {each: entry_of(each) for each in dict.fromkeys(ids)}


def entry_of(token: int) -> Logprob:
    raw = ByteTokenizer().token_bytes(token)
    logprob = float("-inf") if token == ord("!") else -token / 64
    return Logprob(logprob, token + 1, raw.decode(errors="replace"), raw)
