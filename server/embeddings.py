"""/v1/embeddings: hidden states of the model's last layer, one vector a text."""

import base64
import struct
from collections.abc import Sequence
from functools import cache

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.pooling import POOLINGS, PoolingParams
from paged_jax.host.sampling_params import embedding_sampling
from paged_jax.outputs import RequestOutput
from server.call import AnswerOptions, Call
from server.logprobs import TokenSpelling
from server.prompts import completion_prompts
from server.protocol import make_call
from server.schema import Fields, array, boolean, either, integer, obj, one_of, string, unoffered
from server.state import ServerState
from server.tables import ANSWER, CUTTING, MAX_IDS, MAX_PROMPTS, REQUEST, TOKEN, Limits, truncation
from server.wire import Json


@cache
def embeddings_body(limits: Limits) -> Json:
    """Describe the body of /v1/embeddings."""
    ids = array(TOKEN, "Token ids.", low=1, high=MAX_IDS)
    text = string("A text.", low=1)
    own = {
        "input": either(
            text,
            array(text, "Texts.", low=1, high=MAX_PROMPTS),
            ids,
            array(ids, "Lists of token ids.", low=1, high=MAX_PROMPTS),
            wanted="a non-empty string, a list of strings, a list of token ids, or a list of lists "
            f"of token ids (at most {MAX_PROMPTS} of them)",
            text="One text or several.",
        ),
        "encoding_format": one_of("float", "base64", text="base64 is of little-endian float32."),
        "dimensions": integer(1, 1 << 20, "Must be the size of the model's hidden states."),
        "pooling": one_of(*POOLINGS, text="The last token's hidden state, or the mean of all."),
        "normalize": boolean(True, "Scale each embedding to length 1."),
        "truncate_prompt_tokens": truncation(limits),
        "return_metrics": ANSWER["return_metrics"],
        "messages": unoffered(),
        "embed_dtype": unoffered("float32"),
        "endianness": unoffered("native", "little"),
        "use_activation": unoffered(),
    }
    return obj(own | CUTTING | REQUEST, "An embedding request.", required=("input",))


def parse_embeddings(state: ServerState, fields: Fields, header_id: str | None) -> Call:
    """Read the body of /v1/embeddings.

    Raises:
        InvalidRequest: names the field at fault.
    """
    size, wanted = state.engine.config.model.embed_dim, fields.get("dimensions")
    if wanted not in (None, size):
        raise InvalidRequest(
            f"dimensions must be {size}, the size of this model's hidden states, not {wanted}",
            "dimensions",
        )
    pooling = PoolingParams(pooling=fields.get("pooling"), normalize=fields.get("normalize"))
    params = embedding_sampling(pooling)
    answer = AnswerOptions(
        spell=TokenSpelling(state.engine.tokenizer.token_text),
        is_scoring=True,
        return_metrics=fields.get("return_metrics"),
        as_base64=fields.get("encoding_format") == "base64",
    )
    try:
        prompts = completion_prompts(state, fields, n=1, echo=False, name="input")
        return make_call(state, fields, "embd-", header_id, (prompts, params, answer))
    except InvalidRequest as error:
        error.param = "input" if error.param == "prompt" else error.param
        raise


def embeddings_list(call: Call, outputs: Sequence[RequestOutput], told: Json) -> Json:
    """Return the body of the answer; `told` is `Usage.told`."""
    data = [
        {"object": "embedding", "index": index, "embedding": _spelled(call, output)}
        for index, output in enumerate(outputs)
    ]
    named = {"id": call.id, "object": "list", "created": call.created, "model": call.model}
    return named | {"data": data} | told


def _spelled(call: Call, output: RequestOutput) -> list[float] | str:
    assert output.embedding is not None, "the engine made no embedding"
    values = output.embedding
    if not call.answer.as_base64:
        return list(values)
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
