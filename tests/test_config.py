from dataclasses import FrozenInstanceError, fields

import pytest

from paged_jax.config import ModelConfig, OptionError, RopeScaling
from paged_jax.engine_args import EngineArgs, check_option


def make_model(**options: object) -> ModelConfig:
    sizes = {
        "family": "llama",
        "vocab_size": 100,
        "num_layers": 2,
        "embed_dim": 8,
        "mlp_dim": 16,
        "num_q_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 2,
        "max_position": 64,
    }
    return ModelConfig(**(sizes | options))


def test_a_model_config_is_hashable_and_equal_by_value():
    scaling = RopeScaling(kind="llama3", factor=8.0)

    assert hash(make_model(rope_scaling=scaling)) == hash(make_model(rope_scaling=scaling))
    assert make_model() != make_model(rope_scaling=scaling)


def test_a_config_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        make_model().num_layers = 3


def test_a_layer_without_windows_sees_everything():
    assert make_model().window(1) is None


def test_each_layer_has_its_own_window():
    config = make_model(windows=(None, 32))

    assert [config.window(layer) for layer in range(2)] == [None, 32]


def test_the_default_settings_are_legal():
    assert EngineArgs().validate() == EngineArgs.of()


def test_every_setting_has_a_help_text():
    assert all(spec.metadata["help"] for spec in fields(EngineArgs))


RANGED = [spec.name for spec in fields(EngineArgs) if spec.metadata["low"] is not None]
CHOSEN = [spec.name for spec in fields(EngineArgs) if spec.metadata["choices"]]


@pytest.mark.parametrize("name", RANGED)
def test_a_setting_is_legal_within_its_range_and_not_beyond(name):
    spec = next(spec for spec in fields(EngineArgs) if spec.name == name)
    low, high = spec.metadata["low"], spec.metadata["high"]
    for legal in (low, high):
        assert getattr(EngineArgs.of(**{name: legal}), name) == legal
    for beyond in (low - 1, high + 1):
        flag = "--" + name.replace("_", "-")
        with pytest.raises(OptionError, match=f"^{flag} must be between {low} and {high}, not"):
            EngineArgs.of(**{name: beyond})


@pytest.mark.parametrize("name", CHOSEN)
def test_a_setting_outside_its_choices_is_refused(name):
    with pytest.raises(OptionError, match=r"must be one of .*, not 'other'"):
        EngineArgs.of(**{name: "other"})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("max_num_seqs", "8", "int"),
        ("max_num_seqs", True, "int"),
        ("block_size", 16.0, "int"),
        ("block_size", None, "int"),
        ("max_model_len", 1.5, "int"),
        ("enforce_eager", 1, "bool"),
        ("model", 7, "str"),
        ("gpu_memory_utilization", "0.5", "float"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused(name, value, kind):
    with pytest.raises(OptionError, match=f"must be of type {kind}, not"):
        check_option(name, value)


def test_a_share_may_be_written_as_a_whole_number():
    assert EngineArgs.of(gpu_memory_utilization=1).gpu_memory_utilization == 1


def test_what_is_no_number_is_beyond_every_range():
    with pytest.raises(OptionError, match="between"):
        check_option("gpu_memory_utilization", float("nan"))


@pytest.mark.parametrize("name", ["model", "max_model_len", "kv_cache_memory"])
def test_a_setting_without_a_default_may_be_left_open(name):
    assert getattr(EngineArgs.of(**{name: None}), name) is None


def test_an_unknown_setting_is_refused_with_the_known_ones():
    with pytest.raises(OptionError, match=r"unknown option max_seqs; .*max_num_seqs"):
        EngineArgs.of(max_seqs=3)
