"""/tokenize and /detokenize."""

from paged_jax.host.invalid_request import InvalidRequest
from server.errors import cut
from server.prompts import render_messages
from server.schema import Fields
from server.state import ServerState
from server.wire import Json


def tokenize(state: ServerState, fields: Fields) -> Json:
    """Return the ids of `prompt`, or of `messages` as a chat request would see them."""
    tokenizer, is_chat = state.engine.tokenizer, fields.has("messages")
    if is_chat == fields.has("prompt"):
        raise InvalidRequest("prompt (a string) or messages is needed, and only one", "prompt")
    text: str = render_messages(state, fields) if is_chat else fields.get("prompt")
    with_special = fields.get("add_special_tokens")
    ids = tokenizer.encode(
        text, add_special_tokens=not is_chat if with_special is None else with_special
    )
    is_listed: bool = fields.get("return_token_strs")
    return {
        "count": len(ids),
        "max_model_len": state.limit,
        "tokens": ids,
        "token_strs": [tokenizer.token_text(token) for token in ids] if is_listed else None,
    }


def detokenize(state: ServerState, fields: Fields) -> Json:
    """Return the text of `tokens`, special tokens included."""
    tokens: list[int] = fields.get("tokens")
    size = state.engine.tokenizer.size
    for token in tokens:
        if token >= size:
            raise InvalidRequest(f"tokens holds {cut(token)}, out of 0 to {size - 1}", "tokens")
    return {"prompt": state.engine.tokenizer.decode(tokens, skip_special_tokens=False)}
