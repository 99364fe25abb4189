"""LLM: offline generation over a batch of prompts, in the caller's thread."""

import threading
import uuid
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from types import TracebackType

from tqdm import tqdm

from paged_jax.config import AttentionMods
from paged_jax.device.draw_extras import LogitsProcessor
from paged_jax.engine.engine import Engine
from paged_jax.engine_args import EngineArgs
from paged_jax.host.beams import BeamSearchParams
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.pooling import PoolingParams
from paged_jax.host.sampling_params import SamplingParams, beam_sampling, embedding_sampling
from paged_jax.host.saved import SnapshotError
from paged_jax.llm_metrics import Metric, metrics_of
from paged_jax.llm_prompts import EncodedPrompt, Prompt, encode_prompts
from paged_jax.models.params import ModelParams
from paged_jax.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestDelta,
    RequestOutput,
)
from paged_jax.replicas import Replicas, build
from paged_jax.text.tokenizer import Tokenizer

Message = Mapping[str, object]


class LLM:
    """A model that generates: `LLM().generate("Hello")`.

    Options are the fields of `EngineArgs`; the same names with dashes are the server's flags. Calls
    from several threads take turns. Use as a context manager, or `close`, to free the memory.

    Args:
        logits_processor: a traced function of logits and rows; see `DrawExtras`.
        score_mod: attention of your own, as `mask_mod` and `bidirectional`; see `AttentionMods`.

    Raises:
        OptionError: an option is unknown or out of its range (a ValueError).
        ModelError: the model cannot be found or read (a ValueError).
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        logits_processor: LogitsProcessor | None = None,
        score_mod: Callable[..., object] | None = None,
        mask_mod: Callable[..., object] | None = None,
        bidirectional: int = 0,
        **options: object,
    ):
        mods = AttentionMods(score_mod, mask_mod, bidirectional)
        args = EngineArgs.of(model=None if model is None else str(model), **options)
        self.engine: Engine | Replicas = build(args, logits_processor=logits_processor, mods=mods)
        self._lock = threading.Lock()

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self.engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return SamplingParams with the values the model's authors recommend."""
        return SamplingParams(**self.engine.default_sampling)  # type: ignore[arg-type]

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue prompts.

        Args:
            prompts: one or several of: text, token ids, {"prompt": text} or {"prompt_token_ids":
                ids}, the last two with an optional "cache_salt".
            sampling_params: one for all, or one per prompt; None is the model's defaults.
            use_tqdm: show a progress bar.

        Returns:
            One output per prompt, in order.

        Raises:
            InvalidRequest: names the field; nothing is generated then.
            RuntimeError: an answer could not be made.
        """
        encoded = encode_prompts(prompts, self.get_tokenizer())
        return self._run(encoded, sampling_params, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Seq[Message] | Seq[Seq[Message]],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template.

        Messages are dicts with "role" and "content", as in the OpenAI API.
        """
        many = [messages] if _is_conversation(messages) else list(messages)
        encoded = []
        for conversation in many:
            ids = self.engine.tokenizer.encode_chat(
                conversation,  # type: ignore[arg-type]
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
            encoded.append(EncodedPrompt(None, ids))
        return self._run(encoded, sampling_params, use_tqdm=use_tqdm)

    def beam_search(
        self, prompts: Prompt | Seq[Prompt], params: BeamSearchParams, *, use_tqdm: bool = False
    ) -> list[BeamSearchOutput]:
        """Find the `beam_width` likeliest answers to each prompt; prompts are as in `generate`.

        Beams share the blocks of what they have in common. Raises as `generate`.
        """
        encoded = encode_prompts(prompts, self.get_tokenizer())
        outputs = self._run(encoded, beam_sampling(params), use_tqdm=use_tqdm)
        return [
            BeamSearchOutput([self._beam(output, i) for i in range(params.beam_width)])
            for output in outputs
        ]

    def _beam(self, output: RequestOutput, index: int) -> BeamSearchSequence:
        choice = output.outputs[index]
        tokens = output.prompt_token_ids + choice.token_ids
        text = (
            output.prompt or self.engine.tokenizer.decode(output.prompt_token_ids)
        ) + choice.text
        logprob, tables = choice.cumulative_logprob or 0.0, choice.logprobs or []
        reasons = (choice.finish_reason, choice.stop_reason)
        return BeamSearchSequence(tokens, text, logprob, tables, *reasons)

    def embed(
        self,
        prompts: Prompt | Seq[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """Return the model's embedding of each prompt; prompts are as in `generate`.

        Args:
            pooling_params: None is the last token's hidden state, scaled to length 1.
        """
        params = embedding_sampling(pooling_params or PoolingParams())
        encoded = encode_prompts(prompts, self.get_tokenizer())
        return [_embedding(output) for output in self._run(encoded, params, use_tqdm=use_tqdm)]

    def restore(self, path: str | Path, *, use_tqdm: bool = True) -> list[RequestOutput]:
        """Bring the requests of a snapshot (`engine.snapshot`) to their end.

        Returns:
            The whole outputs, but for log-probabilities delivered before, in the order of service.

        Raises:
            SnapshotError: says why it cannot be continued here.
        """
        engine = self.engine
        if isinstance(engine, Replicas):
            raise SnapshotError("restoring a snapshot needs --data-parallel-size 1")
        with self._lock:
            told = engine.restore(path)
            outputs = {delta.request_id: _begun(delta, engine) for delta in told}
            self._drive(outputs, use_tqdm=use_tqdm)
        return list(outputs.values())

    def _run(
        self,
        encoded: list[EncodedPrompt],
        sampling_params: SamplingParams | Seq[SamplingParams] | None,
        *,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        params = self._params(sampling_params, len(encoded))
        for prompt, wanted in zip(encoded, params, strict=True):
            self.engine.check(prompt.ids, wanted)
        with self._lock:
            outputs = {}
            try:
                for prompt, wanted in zip(encoded, params, strict=True):
                    outputs |= [self._submit(prompt, wanted)]
                self._drive(outputs, use_tqdm=use_tqdm)
            finally:
                for request_id in outputs:
                    self.engine.abort(request_id)
        return list(outputs.values())

    def _params(
        self, given: SamplingParams | Seq[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given] * count
        if len(given) != count:
            raise InvalidRequest(
                f"{count} prompts need {count} sampling_params or one for all, not {len(given)}",
                "sampling_params",
            )
        return list(given)

    def _submit(self, prompt: EncodedPrompt, params: SamplingParams) -> tuple[str, RequestOutput]:
        request_id = uuid.uuid4().hex
        self.engine.add(prompt.ids, params, request_id=request_id, cache_salt=prompt.cache_salt)
        choices = [CompletionOutput(index) for index in range(params.n)]
        return request_id, RequestOutput(request_id, prompt.text, prompt.ids, choices)

    def _drive(self, outputs: dict[str, RequestOutput], *, use_tqdm: bool) -> None:
        """Step until every output is finished."""
        tokens = 0
        with tqdm(
            total=len(outputs), desc="Generating", unit="prompt", disable=not use_tqdm
        ) as bar:
            while self.engine.has_work:
                for delta in self.engine.step():
                    if delta.error is not None:
                        raise RuntimeError(delta.error)
                    outputs[delta.request_id].absorb(delta)
                    tokens += sum(len(choice.token_ids) for choice in delta.choices)
                    bar.update(delta.finished)
                rate = tokens / max(bar.format_dict["elapsed"], 1e-9)
                bar.set_postfix_str(f"{rate:.0f} output tokens/s", refresh=False)

    def get_metrics(self) -> list[Metric]:
        """Return the engine's counters and gauges."""
        return list(metrics_of(self.engine.stats()))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False while some are in use."""
        return self.engine.reset_prefix_cache()

    def update_params(self, params: ModelParams) -> int:
        """Replace the parameters as `Engine.update_params` does; return the new version."""
        with self._lock:
            return self.engine.update_params(params)

    def close(self) -> None:
        """Free the device's memory."""
        self.engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _begun(delta: RequestDelta, engine: Engine) -> RequestOutput:
    """What a restored request has been answered so far."""
    request = engine.scheduler.live(delta.request_id)[0].request
    choices = [CompletionOutput(index) for index in range(request.n)]
    output = RequestOutput(request.id, None, list(request.prompt), choices)
    output.absorb(delta)
    return output


def _embedding(output: RequestOutput) -> EmbeddingRequestOutput:
    assert output.embedding is not None, "the prompt was not read"
    made = EmbeddingOutput(list(output.embedding))
    return EmbeddingRequestOutput(
        output.request_id, made, output.prompt_token_ids, output.num_cached_tokens
    )


def _is_conversation(messages: Seq[Message] | Seq[Seq[Message]]) -> bool:
    return not messages or isinstance(messages[0], Mapping)
