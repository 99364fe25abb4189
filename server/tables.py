"""Every field of every body, once: what the parser enforces and /openapi.json publishes."""

from dataclasses import dataclass
from functools import cache

from paged_jax.host.sampling_limits import (
    INT64,
    MAX_ALLOWED_IDS,
    MAX_BAD_WORD_LEN,
    MAX_BAD_WORDS,
    MAX_BIAS_IDS,
    MAX_STOP_IDS,
    MAX_STOP_LEN,
    MAX_STOP_STRINGS,
    RANGES,
)
from server.schema import (
    ANY_OBJECT,
    array,
    boolean,
    either,
    integer,
    number,
    obj,
    one_of,
    string,
    unoffered,
)
from server.structure_table import STRUCTURE
from server.taps import TAPS
from server.wire import Json

MAX_IDS = 1 << 20  # ids of one prompt, or to be turned into text
MAX_MESSAGES = 4096
MAX_PROMPTS = 1024
MAX_NAME_LEN = 128
MAX_TOOLS = 128
PRINTABLE = "^[!-~]+$"
MAX_TOKENIZE_LEN = 1 << 22  # characters
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True)
class Limits:
    """What the engine's settings make of a request's bounds."""

    max_model_len: int
    max_logprobs: int


def _sampled(name: str, text: str) -> Json:
    """Describe a field of SamplingParams with the bounds that class enforces."""
    kind, low, high = RANGES[name]
    return integer(int(low), int(high), text) if kind is int else number(low, high, text)


TOKEN = integer(0, INT64, "A token id.")
_STOP = string("A stop string.", low=1, high=MAX_STOP_LEN)
_MODEL = string("One of the names that /v1/models lists; the first by default.")

SAMPLING: Json = {
    "temperature": _sampled("temperature", "0 is greedy."),
    "top_p": _sampled("top_p", "Keep the likeliest tokens of this total probability."),
    "top_k": integer(-1, INT64, "Keep so many of the likeliest tokens; 0 and -1 are off."),
    "min_p": _sampled("min_p", "Drop tokens less likely than this share of the likeliest."),
    "presence_penalty": _sampled("presence_penalty", "Subtracted for each token seen."),
    "frequency_penalty": _sampled("frequency_penalty", "Subtracted for each time it was seen."),
    "repetition_penalty": _sampled("repetition_penalty", "Divides the logits of seen tokens."),
    "seed": _sampled("seed", "Fixes the draws of this request; -1 is none."),
    "min_tokens": _sampled("min_tokens", "The answer does not end before."),
    "ignore_eos": boolean(False, "Go on after the model's own end."),
    "skip_special_tokens": boolean(True, "Leave special tokens out of the text."),
    "include_stop_str_in_output": boolean(False, "Keep the stop string in the text."),
    "stop": either(
        _STOP,
        array(_STOP, "Stop strings.", high=MAX_STOP_STRINGS),
        wanted=f"a string of 1 to {MAX_STOP_LEN} characters, or a list of at most "
        f"{MAX_STOP_STRINGS} of them",
        text="Texts that end the answer.",
    ),
    "stop_token_ids": array(TOKEN, "Ids that end the answer.", high=MAX_STOP_IDS),
    "logit_bias": {
        **ANY_OBJECT,
        "additionalProperties": number(-1e9, 1e9, "Clamped to [-100, 100]."),
        "maxProperties": MAX_BIAS_IDS,
        "propertyNames": {"pattern": "^[0-9]{1,20}$"},
        "description": "Token id -> added to its logit.",
    },
    "n": _sampled("n", "Choices per prompt."),
    "use_beam_search": boolean(False, "Answer with the n likeliest texts; not in streams."),
    "xtc_probability": _sampled("xtc_probability", "How often XTC leaves out top choices."),
    "xtc_threshold": _sampled("xtc_threshold", "The probability that makes a top choice."),
    "dry_multiplier": _sampled("dry_multiplier", "DRY's penalty on repetitions; 0 is off."),
    "dry_base": _sampled("dry_base", "To the power of a repetition's length."),
    "dry_allowed_length": _sampled("dry_allowed_length", "Shorter repetitions are free."),
    "dry_sequence_breakers": array(
        string("A text.", low=1, high=MAX_BAD_WORD_LEN),
        "Texts that no repetition reaches across.",
        high=MAX_BAD_WORDS,
    ),
    "length_penalty": number(-10, 10, "Of beams: their length's exponent.") | {"default": 1.0},
    "allowed_token_ids": array(TOKEN, "Only these are drawn.", low=1, high=MAX_ALLOWED_IDS),
    "bad_words": array(
        string("A text.", low=1, high=MAX_BAD_WORD_LEN),
        "Texts whose token sequences are not drawn.",
        high=MAX_BAD_WORDS,
    ),
}
ANSWER: Json = {
    "stream": boolean(False, "Send the answer as server-sent events."),
    "stream_options": obj(
        {
            "include_usage": boolean(False, "End with a chunk of usage figures."),
            "continuous_usage_stats": boolean(False, "Usage figures in every chunk."),
        },
        "Needs stream.",
    ),
    "echo": boolean(False, "Repeat the prompt before the answer."),
    "return_tokens_as_token_ids": boolean(False, "Spell tokens as token_id:<id>."),
    "return_token_ids": boolean(False, "List the ids of prompt and answer."),
    "return_metrics": boolean(False, "Tell the request's times; of one prompt only."),
}
REQUEST: Json = {
    "model": _MODEL,
    "request_id": string("Part of the answer's id.", low=1, high=MAX_NAME_LEN)
    | {"pattern": PRINTABLE},
    "priority": integer(-INT64, INT64 - 1, "Lower is earlier, where the server orders by it."),
    "cache_salt": string("Shares cached prefixes with equal salts only.", low=1, high=MAX_NAME_LEN),
    "user": string("Without effect."),
    "metadata": {**ANY_OBJECT, "description": "Without effect."},
}
CUTTING: Json = {
    "truncation_side": one_of("left", "right", text="Which end to cut."),
    "add_special_tokens": boolean(True, "Let the tokenizer add what begins a text."),
}
_UNOFFERED: Json = {
    "audio": unoffered(),
    "ec_transfer_params": unoffered(),
    "guided_choice": unoffered(),
    "guided_grammar": unoffered(),
    "guided_json": unoffered(),
    "guided_regex": unoffered(),
    "kv_transfer_params": unoffered(),
    "logits_processors": unoffered([]),
    "logprob_token_ids": unoffered([]),
    "prompt_embeds": unoffered(),
    "repetition_detection": unoffered(),
    "thinking_token_budget": unoffered(),
    "vllm_xargs": unoffered({}),
    "watermarking": unoffered(),
}
_CHAT_UNOFFERED: Json = {
    "chat_template": unoffered(),
    "documents": unoffered([]),
    "function_call": unoffered("none"),
    "functions": unoffered([]),
    "media_io_kwargs": unoffered(),
    "mm_processor_kwargs": unoffered(),
    "modalities": unoffered(["text"]),
    "web_search_options": unoffered(),
}
NAME = string("The function's name.", low=1, high=64) | {"pattern": "^[A-Za-z0-9_.-]+$"}
FUNCTION = obj(
    {
        "name": NAME,
        "description": string("What it does."),
        "parameters": {**ANY_OBJECT, "description": "JSON Schema of its arguments."},
        "strict": boolean(False, "Kept where a call is forced, refused elsewhere."),
    },
    "A function.",
    required=("name",),
)
IS_FUNCTION = one_of("function", text="Only functions are offered.")
_TOOL = obj({"type": IS_FUNCTION, "function": FUNCTION}, "A tool.", required=("type", "function"))
_NAMED_TOOL = obj(
    {"type": IS_FUNCTION, "function": obj({"name": NAME}, "Which.", required=("name",))},
    "One function.",
    required=("type", "function"),
)
CONVERSATION: Json = {
    "messages": array(
        obj({"role": string("Who speaks.", low=1)}, "A message.", required=("role",)),
        "The conversation so far.",
        low=1,
        high=MAX_MESSAGES,
    ),
    "add_generation_prompt": boolean(True, "End with the header of the assistant's turn."),
    "continue_final_message": boolean(False, "Let the model continue the last message."),
    "add_special_tokens": boolean(False, "Let the tokenizer add what begins a text."),
    "chat_template_kwargs": {**ANY_OBJECT, "description": "Variables for the chat template."},
    "reasoning_effort": one_of(*EFFORTS, text="Handed to the chat template.") | {"default": None},
    "tools": array(_TOOL, "Functions the model may call.", high=MAX_TOOLS),
}
CHOICE: Json = {
    "tool_choice": either(
        one_of("none", "auto", "required", text="required forces a call."),
        _NAMED_TOOL,
        wanted="none, auto, required or a named function",
        text="auto where there are tools, else none.",
    ),
    "parallel_tool_calls": boolean(True, "False keeps the first call only."),
    "include_reasoning": boolean(True, "Tell the reasoning, where it is told apart."),
}


@cache
def completion_body(limits: Limits) -> Json:
    """Describe the body of /v1/completions."""
    ids = array(TOKEN, "Token ids.", low=1, high=MAX_IDS)
    own = {
        "prompt": either(
            string("A text.", low=1),
            array(string("A text.", low=1), "Texts.", low=1, high=MAX_PROMPTS),
            ids,
            array(ids, "Lists of token ids.", low=1, high=MAX_PROMPTS),
            wanted="a non-empty string, a list of strings, a list of token ids, or a list of lists "
            f"of token ids (at most {MAX_PROMPTS} prompts)",
            text="One prompt or several.",
        ),
        "max_tokens": integer(0, limits.max_model_len, "16 by default; 0 needs echo."),
        "logprobs": integer(0, limits.max_logprobs, "Alternatives per position."),
        "suffix": unoffered(""),
        "best_of": integer(1, INT64, "Must equal n."),
    }
    fields = own | SAMPLING | STRUCTURE | ANSWER | REQUEST | CUTTING | _common(limits) | _UNOFFERED
    return obj(fields, "A completion request.", required=("prompt",))


@cache
def chat_body(limits: Limits) -> Json:
    """Describe the body of /v1/chat/completions."""
    own = {
        name: integer(1, limits.max_model_len, "The rest of the context by default.")
        for name in ("max_completion_tokens", "max_tokens")
    } | {
        "logprobs": boolean(False, "Log-probabilities of the answer's tokens."),
        "top_logprobs": integer(0, limits.max_logprobs, "Alternatives; needs logprobs."),
        "store": unoffered(False),
    }
    fields = own | SAMPLING | STRUCTURE | ANSWER | REQUEST | CUTTING | _common(limits)
    fields |= _UNOFFERED | _CHAT_UNOFFERED | CONVERSATION | CHOICE
    return obj(fields, "A chat request.", required=("messages",))


def _common(limits: Limits) -> Json:
    return TAPS | {
        "prompt_logprobs": integer(0, limits.max_logprobs, "For the prompt; not in streams."),
        "truncate_prompt_tokens": truncation(limits),
    }


def truncation(limits: Limits) -> Json:
    """Describe `truncate_prompt_tokens`."""
    return integer(-1, limits.max_model_len, "Keep so many tokens of the prompt; -1 is what fits.")


@cache
def tokenize_body(_limits: Limits) -> Json:
    """Describe the body of /tokenize."""
    own = {
        "prompt": string("A text.", high=MAX_TOKENIZE_LEN),
        "add_special_tokens": {"type": "boolean", "description": "True, but false for messages."},
        "return_token_strs": boolean(False, "List the text of each token."),
        "model": _MODEL,
    }
    return obj(_CHAT_UNOFFERED | CONVERSATION | own, "A prompt, or messages.")


@cache
def detokenize_body(_limits: Limits) -> Json:
    """Describe the body of /detokenize."""
    fields = {"model": _MODEL, "tokens": array(TOKEN, "Token ids.", high=MAX_IDS)}
    return obj(fields, "Ids to be turned into text.", required=("tokens",))


@cache
def abort_body(_limits: Limits) -> Json:
    """Describe the body of /abort_request."""
    fields = {
        "request_id": string("The answer's id, or the id given with the request.", low=1, high=256),
        "abort_all": boolean(False, "End every request."),
    }
    return obj(fields, "Which requests to end.")
