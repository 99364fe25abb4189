"""Known fields whose effect this server does not offer: refused, not ignored.

A value that asks for nothing (null, or one of the harmless values listed) is accepted.
"""

from paged_jax.host.invalid_request import InvalidRequest
from server.errors import cut
from server.fields import Fields

_HARMLESS: dict[str, tuple[object, ...]] = {
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "documents": ([],),
    "ec_transfer_params": (),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "logits_processors": ([],),
    "logprob_token_ids": ([],),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "repetition_detection": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_token_budget": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (),
    "web_search_options": (),
}


def refuse_unoffered(fields: Fields) -> None:
    """Raise InvalidRequest that names the first field asking for what is not offered."""
    for name, harmless in _HARMLESS.items():
        value = fields.get(name)
        if value is not None and not _is_any(value, harmless):
            raise InvalidRequest(f"{name} is not offered (got {cut(value)}): leave it out", name)
    n, best_of = fields.get("n") or 1, fields.get("best_of")
    if best_of is not None and not _is_any(best_of, (n,)):
        raise InvalidRequest(f"best_of must equal n ({cut(n)}), not {cut(best_of)}", "best_of")


def _is_any(value: object, harmless: tuple[object, ...]) -> bool:
    return any(type(value) is type(item) and value == item for item in harmless)
