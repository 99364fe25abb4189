"""What a prompt is continued by, under the module name that vLLM's users import from."""

from paged_jax.host.beams import BeamSearchParams
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.structured_outputs import StructuredOutputsParams

__all__ = ["BeamSearchParams", "SamplingParams", "StructuredOutputsParams"]
