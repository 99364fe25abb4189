"""Pictures of runs: drawn without a display, and refused in a sentence without matplotlib."""

import importlib.util
import sys
from io import BytesIO

import pytest

from paged_jax.config import OptionError
from paged_jax.host.arrivals import Load
from paged_jax.host.block_map import block_map
from paged_jax.host.block_text import lines_of
from paged_jax.host.recording import RecordingScheduler
from paged_jax.host.replay import Recording
from paged_jax.host.simulate import ModelledTiming, Simulation
from paged_jax.host.step_cost import COSTS
from paged_jax.host.system import System
from paged_jax.plots import animated_blocks, panels

SYSTEM = System(pool_tokens=128, block_size=8, max_seqs=3, max_tokens_per_step=32)
has_matplotlib = pytest.mark.skipif(
    not importlib.util.find_spec("matplotlib"), reason="needs matplotlib: the extra notebooks"
)


def recorded(path) -> Recording:
    scheduler = RecordingScheduler(SYSTEM.limits, SYSTEM.cache, path)
    load = Load(num_requests=3, prompt_lens=(4, 9), output_lens=(2, 5), prefix_len=9)
    Simulation(scheduler, load.requests(), ModelledTiming(COSTS["two-cores"], scheduler)).run()
    return Recording.read(path)


@has_matplotlib
def test_a_recorded_run_becomes_an_animation_with_a_frame_a_step(tmp_path, monkeypatch) -> None:
    from PIL import Image

    monkeypatch.setenv("MPLBACKEND", "Agg")
    recording = recorded(tmp_path / "r")

    picture = Image.open(BytesIO(animated_blocks(recording)))

    assert 1 < picture.n_frames <= recording.num_steps


def test_without_matplotlib_the_remedy_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(OptionError, match=r"pip install 'paged_jax\[notebooks\]'"):
        panels(1)


def test_the_block_map_as_text_tells_free_cached_held_and_shared_blocks() -> None:
    load = Load(num_requests=2, prompt_lens=(3, 3), output_lens=(2, 9), prefix_len=8, seed=2)
    simulation = SYSTEM.simulation(load.requests(), COSTS["two-cores"])
    simulation.step()

    blocks = block_map(simulation.scheduler)
    assert lines_of(blocks)[0] == "Aab" + "." * 13
    simulation.run()
    assert lines_of(block_map(simulation.scheduler))[0].count("-") == 2
