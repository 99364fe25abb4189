"""How /v1/responses spells an answer: a list of items, built up by events.

A whole answer is what the last event of its stream holds.
"""

import uuid

from paged_jax.outputs import ChoiceDelta, RequestDelta, RequestOutput
from paged_jax.text.answer_reader import AnswerReader
from paged_jax.text.reasoning import Part
from server.call import Call
from server.formats import as_delta
from server.wire import Json

_STATUS = {"length": "incomplete", "abort": "cancelled"}
_PREFIX = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}
_EVENT = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


class ResponseFormat:
    """A Format; items are opened and closed in the order of the answer's parts."""

    done = b""

    def __init__(self, call: Call):
        self._call = call
        self._reader = AnswerReader(call.answer.reading)
        self._items: list[Json] = []
        self._open: _Item | None = None
        self._status, self._num_events = "in_progress", 0

    def whole(self, outputs: list[RequestOutput], told: Json) -> Json:
        """Return the body of an unstreamed answer."""
        self.pieces(0, as_delta(outputs[0], 0))
        return self.closing(told)[-1]["response"]

    def opening(self, number: int, delta: RequestDelta) -> list[Json]:
        """Return the events that go before the first text."""
        return [self._told("response.created"), self._told("response.in_progress")]

    def pieces(self, number: int, choice: ChoiceDelta) -> list[Json]:
        """Return the events for what one step added."""
        reason = choice.finish_reason
        events: list[Json] = []
        for part in self._reader.read(choice.text, is_last=reason is not None):
            events += self._absorb(part)
        if reason is not None:
            self._status = _STATUS.get(reason, "completed")
            if self._open is None:  # an answer without any text
                events += self._start("message")
            events += self._end(self._status)
        return events

    def closing(self, told: Json) -> list[Json]:
        """Return the event with the whole response."""
        kind = "completed" if self._status == "completed" else "incomplete"
        return [self._told(f"response.{kind}", **told | {"usage": _usage(told["usage"])})]

    def failure(self, error: Json) -> list[Json]:
        """Return the event that ends a stream in which the engine failed."""
        self._status = "failed"
        told = {"code": "server_error", "message": error["error"]["message"]}
        return [self._told("response.failed", error=told)]

    def _absorb(self, part: Part) -> list[Json]:
        kind = {"content": "message", "reasoning": "reasoning"}.get(part.kind, "function_call")
        events: list[Json] = []
        if part.kind == "call" or self._open is None or self._open.kind != kind:
            events = self._end("completed") + self._start(kind, part)
        if part.kind != "call" and self._open is not None:
            events += self._numbered(self._open.add(part.text))
        return events

    def _start(self, kind: str, part: Part | None = None) -> list[Json]:
        name = part.text if part is not None and part.kind == "call" else ""
        self._open = _Item(kind, len(self._items), name)
        return self._numbered(self._open.begin())

    def _end(self, status: str) -> list[Json]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        self._items.append(item.told("completed" if status == "completed" else "incomplete"))
        return self._numbered(item.end(self._items[-1]))

    def _numbered(self, events: list[Json]) -> list[Json]:
        first, self._num_events = self._num_events, self._num_events + len(events)
        return [event | {"sequence_number": first + i} for i, event in enumerate(events)]

    def _told(self, kind: str, **fields: Json) -> Json:
        """Return the event that holds the response as it stands."""
        is_cut = self._status == "incomplete"
        response = {
            "id": self._call.id,
            "object": "response",
            "created_at": self._call.created,
            "model": self._call.model,
            "status": self._status,
            "output": list(self._items),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "previous_response_id": None,
            "store": False,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "usage": None,
        }
        event: Json = {"type": kind, "response": response | self._call.told | fields}
        return self._numbered([event])[0]


class _Item:
    """One item of the output while it is made."""

    def __init__(self, kind: str, index: int, name: str):
        self.kind, self._name = kind, name
        self._id, self._call_id = _PREFIX[kind] + uuid.uuid4().hex, "call_" + uuid.uuid4().hex
        self._at: Json = {"item_id": self._id, "output_index": index}
        self._texts: list[str] = []
        if kind != "function_call":
            self._at["content_index"] = 0

    def begin(self) -> list[Json]:
        """Return the events that announce the item."""
        index = self._at["output_index"]
        item = self.told("in_progress")
        if not self._is_call:
            item["content"] = []
        added = {"type": "response.output_item.added", "output_index": index, "item": item}
        if self._is_call:
            return [added]
        return [added, {"type": "response.content_part.added", "part": self._part(), **self._at}]

    def add(self, text: str) -> list[Json]:
        """Return the event for more of its text."""
        self._texts.append(text)
        return [self._event("delta", {"delta": text})]

    def end(self, item: Json) -> list[Json]:
        """Return the events that complete the item."""
        text = "".join(self._texts)
        index = self._at["output_index"]
        last = {"type": "response.output_item.done", "output_index": index, "item": item}
        if self._is_call:
            return [self._event("done", {"name": self._name, "arguments": text}), last]
        part = {"type": "response.content_part.done", "part": self._part(), **self._at}
        return [self._event("done", {"text": text}), part, last]

    def told(self, status: str) -> Json:
        """Return the item as it stands."""
        item: Json = {"id": self._id, "type": self.kind, "status": status}
        if self._is_call:
            text = "".join(self._texts)
            return item | {"call_id": self._call_id, "name": self._name, "arguments": text}
        if self.kind == "reasoning":
            return item | {"summary": [], "content": [self._part()]}
        return item | {"role": "assistant", "content": [self._part()]}

    @property
    def _is_call(self) -> bool:
        return self.kind == "function_call"

    def _event(self, name: str, fields: Json) -> Json:
        logprobs: Json = {"logprobs": []} if self.kind == "message" else {}
        return {"type": f"{_EVENT[self.kind]}.{name}", **self._at, **fields, **logprobs}

    def _part(self) -> Json:
        text = "".join(self._texts)
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Json) -> Json:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    details: Json = usage.get("completion_tokens_details") or {"reasoning_tokens": 0}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": details,
        "total_tokens": usage["total_tokens"],
    }
