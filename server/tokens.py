"""/tokenize and /detokenize."""

from paged_jax.host.invalid_request import InvalidRequest
from server.errors import cut
from server.fields import Fields
from server.prompts import render_messages
from server.state import ServerState
from server.unoffered import refuse_unoffered
from server.wire import Json


def tokenize(state: ServerState, body: Json) -> Json:
    """Return the ids of `prompt`, or of `messages` as a chat request would see them."""
    fields = Fields(body)
    state.check_model(fields)
    refuse_unoffered(fields)
    tokenizer, is_chat = state.engine.tokenizer, fields.has("messages")
    text = render_messages(state, fields) if is_chat else fields.text("prompt")
    if text is None:
        raise InvalidRequest("prompt (a string) or messages is needed", "prompt")
    ids = tokenizer.encode(
        text, add_special_tokens=fields.boolean("add_special_tokens", not is_chat)
    )
    with_text = fields.boolean("return_token_strs")
    return {
        "count": len(ids),
        "max_model_len": state.limit,
        "tokens": ids,
        "token_strs": [tokenizer.token_text(token) for token in ids] if with_text else None,
    }


def detokenize(state: ServerState, body: Json) -> Json:
    """Return the text of `tokens`, special tokens included."""
    fields = Fields(body)
    state.check_model(fields)
    tokens = fields.items("tokens", int, "token ids")
    if tokens is None:
        raise InvalidRequest("tokens (a list of token ids) is needed", "tokens")
    size = state.engine.tokenizer.size
    for token in tokens:
        if not 0 <= token < size:
            raise InvalidRequest(f"tokens holds {cut(token)}, out of 0 to {size - 1}", "tokens")
    return {"prompt": state.engine.tokenizer.decode(tokens, skip_special_tokens=False)}
