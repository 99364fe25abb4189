"""How /v1/chat/completions spells an answer: whole, and as the chunks of a stream."""

import uuid
from collections.abc import Sequence

from paged_jax.outputs import ChoiceDelta, RequestDelta, RequestOutput
from paged_jax.text.answer_reader import AnswerReader
from paged_jax.text.reasoning import Part
from server.call import Call
from server.formats import ChunkFormat, as_delta, envelope, tells_tokens, told_captures
from server.logprobs import chat_logprobs, prompt_logprobs
from server.wire import Json


class ChatFormat(ChunkFormat):
    """A Format; each choice is read by a reader of its own."""

    chunk_kind = "chat.completion.chunk"

    def __init__(self, call: Call):
        super().__init__(call)
        self._readers = [AnswerReader(call.answer.reading) for _ in range(call.params.n)]

    def whole(self, outputs: list[RequestOutput], told: Json) -> Json:
        """Return the body of an unstreamed answer."""
        call, (output,) = self._call, outputs
        choices = [self._whole_choice(as_delta(output, i)) for i in range(call.params.n)]
        choices[0] |= told_captures(output)
        body = envelope(call, "chat.completion", choices) | told
        if call.answer.return_token_ids:
            body["prompt_token_ids"] = output.prompt_token_ids
        if call.answer.prompt_logprobs is not None and output.prompt_logprobs is not None:
            tables = output.prompt_logprobs
            body["prompt_logprobs"] = prompt_logprobs(tables, call.answer.prompt_logprobs)
        return body

    def opening(self, number: int, delta: RequestDelta) -> list[Json]:
        """Return a chunk with the role for each choice, then the echo."""
        call, prompt = self._call, self._call.prompts[0]
        empty = [ChoiceDelta(index, "", ()) for index in range(call.params.n)]
        role = {"role": "assistant", "content": ""}
        chunks = [self._chunk(choice, role) for choice in empty]
        if call.answer.return_token_ids:
            chunks = [chunk | {"prompt_token_ids": list(prompt.ids)} for chunk in chunks]
        if prompt.echo:
            chunks += [self._chunk(choice, {"content": prompt.echo}) for choice in empty]
        return chunks

    def pieces(self, number: int, choice: ChoiceDelta) -> list[Json]:
        """Return the chunks for what one step added to one choice, one for each kind of text."""
        is_last = choice.finish_reason is not None
        parts = self._readers[choice.index].read(choice.text, is_last=is_last)
        said = [self._delta_of(part) for part in parts]
        if not said and not is_last and not tells_tokens(self._call, choice):
            return []
        *before, last = said or [{"content": ""}]
        empty = ChoiceDelta(choice.index, "", ())
        return [*(self._chunk(empty, delta) for delta in before), self._chunk(choice, last)]

    def _delta_of(self, part: Part) -> Json:
        if part.kind == "content":
            return {"content": part.text}
        if part.kind == "reasoning":
            return {"reasoning": part.text, "reasoning_content": part.text}
        call: Json = {"index": part.call, "function": {"arguments": part.text}}
        if part.kind == "call":
            function = {"name": part.text, "arguments": ""}
            call |= {"id": self._call_id(), "type": "function", "function": function}
        return {"tool_calls": [call]}

    def _call_id(self) -> str:
        spelling = self._call.answer.reading.calls
        assert spelling is not None, "calls are told only where they are looked for"
        return uuid.uuid4().hex[: spelling.id_len]

    def _whole_choice(self, delta: ChoiceDelta) -> Json:
        parts = self._readers[delta.index].read(delta.text, is_last=True)
        message = self._message(parts)
        return self._choice(delta, "message", message) | {"stop_reason": delta.stop_reason}

    def _message(self, parts: Sequence[Part]) -> Json:
        """Return the message; a field of what the model did not say is null or absent."""
        text = self._call.prompts[0].echo + joined(parts, "content")
        reasoning = joined(parts, "reasoning")
        calls = [
            {
                "id": self._call_id(),
                "type": "function",
                "function": {"name": part.text, "arguments": joined(parts, "arguments", part.call)},
            }
            for part in parts
            if part.kind == "call"
        ]
        content = None if not text and (calls or reasoning) else text
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message |= {"reasoning": reasoning, "reasoning_content": reasoning}
        return message | ({"tool_calls": calls} if calls else {})

    def _chunk(self, delta: ChoiceDelta, said: Json) -> Json:
        choice = self._choice(delta, "delta", said)
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        return envelope(self._call, self.chunk_kind, [choice])

    def _choice(self, delta: ChoiceDelta, name: str, said: Json) -> Json:
        answer, logprobs = self._call.answer, None
        if answer.logprobs is not None and delta.logprobs:
            tables, count = delta.logprobs, answer.logprobs
            logprobs = chat_logprobs(delta.token_ids, tables, count, answer.spell)
        is_call = delta.finish_reason == "stop" and self._readers[delta.index].has_calls
        is_call &= not answer.reading.is_named
        choice: Json = {
            "index": delta.index,
            name: said,
            "logprobs": logprobs,
            "finish_reason": "tool_calls" if is_call else delta.finish_reason,
        }
        if answer.return_token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return choice


def joined(parts: Sequence[Part], kind: str, call: int = 0) -> str:
    """Return the whole text of one kind, of one call."""
    return "".join(part.text for part in parts if (part.kind, part.call) == (kind, call))
