"""`use_beam_search`: a request for beams, where only what beams can have may be asked for."""

from paged_jax.host.beams import BeamSearchParams
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.sampling_params import SamplingParams, beam_sampling
from server.call import AnswerOptions
from server.schema import Fields

# Fields that would change what is drawn or when it ends, and their values that ask for nothing.
_REFUSED: dict[str, tuple[object, ...]] = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stop": ([],),
    "stop_token_ids": ([],),
    "stream": (False,),
    "structured_outputs": (),
    "taps": (),
}


def beam_params(fields: Fields, answer: AnswerOptions, *, max_tokens: int | None) -> SamplingParams:
    """Return the parameters of a beam search; `n` is how many beams.

    Raises:
        InvalidRequest: a field asks for what beams cannot have.
    """
    for name, harmless in _REFUSED.items():
        if fields.has(name) and fields.get(name) not in harmless:
            raise InvalidRequest(f"{name} is not offered beside use_beam_search", name)
    if answer.is_scoring or answer.prompt_logprobs is not None:
        name = "max_tokens" if answer.is_scoring else "prompt_logprobs"
        raise InvalidRequest(f"{name} scores the prompt, which use_beam_search does not", name)
    search = BeamSearchParams(
        beam_width=fields.get("n") or 1,
        max_tokens=max_tokens,
        ignore_eos=fields.get("ignore_eos"),
        length_penalty=fields.get("length_penalty"),
        include_stop_str_in_output=fields.get("include_stop_str_in_output"),
        skip_special_tokens=fields.get("skip_special_tokens"),
    )
    return beam_sampling(search, logprobs=answer.logprobs)
