"""From a checkpoint's `quantization_config` to a Quantisation; what is not computed is refused."""

from typing import cast

from paged_jax.config import Quantisation
from paged_jax.models.families import Description

DEFAULT_GROUP = 128
WHOLE = -1  # a group_size: every input of a column shares one scale
ZERO_SHIFTS = {"gptq": 1, "gptq_v2": 0}


def quantisation_from_hf(about: Description) -> Quantisation:
    """Return how a checkpoint is packed.

    Args:
        about: the `quantization_config` of config.json, or a whole quantize_config.json.
    Raises:
        ModelError: names the file, the key, its value and what is supported.
    """
    method = about.text("quant_method")
    if method not in ("awq", "gptq"):
        raise about.error("quant_method", "awq or gptq")
    if about.flag("lm_head"):
        raise about.error("lm_head", "false: the output head is kept in floats")
    return _gptq(about) if method == "gptq" else _awq(about)


def _gptq(about: Description) -> Quantisation:
    bits, layout = about.count("bits"), about.text("checkpoint_format", "gptq")
    if bits not in (4, 8):
        raise about.error("bits", "4 or 8")
    if layout not in ZERO_SHIFTS:
        raise about.error("checkpoint_format", f"one of {', '.join(ZERO_SHIFTS)}")
    if about.text("pack_dtype", "int32") != "int32":
        raise about.error("pack_dtype", "int32")
    if not all(rule.startswith("-:") for rule in about.part("dynamic").facts):
        raise about.error("dynamic", "without settings of single modules")
    about.flag("sym")
    shift, needs_order = ZERO_SHIFTS[layout], about.flag("desc_act")
    return Quantisation("gptq", bits, _group_size(about), shift, needs_order)


def _awq(about: Description) -> Quantisation:
    if about.count("bits") != 4:
        raise about.error("bits", "4")
    if about.text("version", "gemm").lower() != "gemm":
        raise about.error("version", "gemm")
    if not about.flag("zero_point", True):
        raise about.error("zero_point", "true")
    return Quantisation("awq", 4, _group_size(about))


def _group_size(about: Description) -> int | None:
    """The number of inputs that share a scale; None is all of them."""
    size = about.facts.get("group_size", DEFAULT_GROUP)
    if type(size) is not int or (size < 1 and size != WHOLE):
        raise about.error("group_size", "a positive whole number, or -1 for all inputs")
    return None if size == WHOLE else cast(int, size)
