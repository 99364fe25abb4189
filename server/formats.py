"""How endpoints spell an answer, and how /v1/completions does: whole, and as chunks of a stream."""

from typing import Protocol

from paged_jax.outputs import ChoiceDelta, PositionLogprobs, RequestDelta, RequestOutput
from server import taps
from server.call import Call
from server.logprobs import CompletionLogprobs, prompt_logprobs
from server.wire import DONE, Json


class Format(Protocol):
    """Spells the answer to one call. `done` is what ends a stream."""

    done: bytes

    def whole(self, outputs: list[RequestOutput], told: Json) -> Json:
        """Return the body of an unstreamed answer; `told` is `Usage.told`."""
        ...

    def opening(self, number: int, delta: RequestDelta) -> list[Json]:
        """Return the events that go before the first text of prompt `number`."""
        ...

    def pieces(self, number: int, choice: ChoiceDelta) -> list[Json]:
        """Return the events for what one step added to one choice; none if it tells nothing."""
        ...

    def closing(self, told: Json) -> list[Json]:
        """Return the events that go after the last text; `told` is `Usage.told`."""
        ...

    def failure(self, error: Json) -> list[Json]:
        """Return the events that end a stream in which something failed."""
        ...


class ChunkFormat:
    """The end of a stream of chunks, which are of the `object` that `chunk_kind` names."""

    done = DONE
    chunk_kind = ""

    def __init__(self, call: Call):
        self._call = call

    def closing(self, told: Json) -> list[Json]:
        """Return a chunk with the usage and the times, if they are asked for."""
        if not self._call.answer.include_usage:
            told = {name: value for name, value in told.items() if name == "metrics"}
        return [envelope(self._call, self.chunk_kind, []) | told] if told else []

    def failure(self, error: Json) -> list[Json]:
        """Return the error as it is."""
        return [error]


def tells_tokens(call: Call, choice: ChoiceDelta) -> bool:
    """Whether a chunk without text would tell the client of tokens."""
    is_asked = call.answer.logprobs is not None or call.answer.return_token_ids
    return is_asked and bool(choice.token_ids)


def envelope(call: Call, kind: str, choices: list[Json]) -> Json:
    """Return what every body and chunk begins with."""
    return {
        "id": call.id,
        "object": kind,
        "created": call.created,
        "model": call.model,
        "choices": choices,
    }


class CompletionFormat(ChunkFormat):
    """/v1/completions."""

    chunk_kind = "text_completion"

    def __init__(self, call: Call):
        super().__init__(call)
        count = call.answer.logprobs or 0
        num_choices = len(call.prompts) * call.params.n
        self._logprobs = [CompletionLogprobs(count, call.answer.spell) for _ in range(num_choices)]

    def whole(self, outputs: list[RequestOutput], told: Json) -> Json:
        """Return the body of an unstreamed answer."""
        choices = [
            self._whole_choice(number, output, index)
            for number, output in enumerate(outputs)
            for index in range(self._call.params.n)
        ]
        return envelope(self._call, "text_completion", choices) | told

    def opening(self, number: int, delta: RequestDelta) -> list[Json]:
        """Return one chunk a choice with what is told of the prompt, if anything is."""
        call = self._call
        if not (call.answer.echo or call.answer.return_token_ids):
            return []
        opening = [
            self._prompt_choice(number, index, delta.prompt_logprobs)
            for index in range(call.params.n)
        ]
        return [envelope(call, self.chunk_kind, [choice]) for choice in opening]

    def pieces(self, number: int, choice: ChoiceDelta) -> list[Json]:
        """Return the chunk for what one step added to one choice, if it tells anything."""
        is_told = choice.text or choice.finish_reason is not None
        if not is_told and not tells_tokens(self._call, choice):
            return []
        return [envelope(self._call, self.chunk_kind, [self._choice(number, choice)])]

    def _whole_choice(self, number: int, output: RequestOutput, index: int) -> Json:
        answer = self._call.answer
        tables = None if output.prompt_logprobs is None else tuple(output.prompt_logprobs)
        before = self._prompt_choice(number, index, tables)
        choice = self._choice(number, as_delta(output, index))
        choice["text"] = before["text"] + choice["text"]
        choice["logprobs"] = _joined(before["logprobs"], choice["logprobs"])
        if answer.return_token_ids:
            choice["prompt_token_ids"] = before["prompt_token_ids"]
        if answer.prompt_logprobs is not None and tables is not None:
            choice["prompt_logprobs"] = prompt_logprobs(tables, answer.prompt_logprobs)
        return choice | told_captures(output)

    def _prompt_choice(
        self, number: int, index: int, tables: tuple[PositionLogprobs | None, ...] | None
    ) -> Json:
        """Return a choice that holds the prompt's own text, log-probabilities and ids."""
        answer, prompt = self._call.answer, self._call.prompts[number]
        choice = self._choice(number, ChoiceDelta(index, prompt.echo, ()))
        if answer.echo and answer.logprobs is not None and tables is not None:
            own = self._logprobs[number * self._call.params.n + index]
            choice["logprobs"] = own.part(prompt.ids, tables)
        if answer.return_token_ids:
            choice["prompt_token_ids"] = list(prompt.ids)
        return choice

    def _choice(self, number: int, delta: ChoiceDelta) -> Json:
        answer, index = self._call.answer, number * self._call.params.n + delta.index
        logprobs = None
        if answer.logprobs is not None and delta.logprobs:
            logprobs = self._logprobs[index].part(delta.token_ids, delta.logprobs)
        choice: Json = {
            "index": index,
            "text": delta.text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if answer.return_token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return choice


def as_delta(output: RequestOutput, index: int) -> ChoiceDelta:
    """Return a whole choice as if one step had made it."""
    choice = output.outputs[index]
    return ChoiceDelta(
        index,
        choice.text,
        tuple(choice.token_ids),
        None if choice.logprobs is None else tuple(choice.logprobs),
        choice.finish_reason,
        choice.stop_reason,
    )


def told_captures(output: RequestOutput) -> Json:
    """Return the field of the one choice that tells what taps read; none if they read nothing."""
    return {} if output.captures is None else {"captures": taps.told(output.captures)}


def _joined(first: Json | None, second: Json | None) -> Json | None:
    """Join the lists of two parts of a choice's log-probabilities."""
    if first is None or second is None:
        return first or second
    return {name: first[name] + second[name] for name in first}
