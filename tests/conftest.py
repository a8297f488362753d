"""Tiny models and the settings that all tests share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from official_files import WORDS, Official, random_official

import torchelmo
from torchelmo import BiLM
from torchelmo.bilm.fast.products import Tuning
from torchelmo.runtime import why_onednn_crashes

# The same examples in every run and on every machine: a failure is found again by running the tests again.
hypothesis.settings.register_profile(
    "torchelmo",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=25,
    print_blob=False,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink],
)
hypothesis.settings.load_profile("torchelmo")
# Tests do not depend on timings, nor do their subprocesses; those of the choice of kernels change this.
os.environ["TORCHELMO_KERNELS"] = "fixed"
# Virtual machines on which oneDNN's AMX kernels crash, whether torchelmo or PyTorch calls them.
if why_onednn_crashes():
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
    why_onednn_crashes.cache_clear()


AS_FOR_LARGE_MODELS = Tuning(max_paired_weight=0, input_chunk=300, min_packed_weight=0)


@pytest.fixture(
    params=[("reference", Tuning()), ("fast", Tuning()), ("fast", AS_FOR_LARGE_MODELS)],
    ids=["reference", "fast", "fast-as-for-large-models"],
)
def _execution(request: pytest.FixtureRequest) -> tuple[str, Tuning]:
    """Every way in which a BiLM computes the same results."""
    path: tuple[str, Tuning] = request.param
    return path


@pytest.fixture
def tune(_execution: tuple[str, Tuning]) -> Callable[[BiLM], BiLM]:
    """Prepare a model, which is returned, for the fixture `path`."""

    def tune(bilm: BiLM) -> BiLM:
        bilm.fast.tuning = _execution[1]
        return bilm

    return tune


@pytest.fixture
def path(_execution: tuple[str, Tuning], tune: Callable[[BiLM], BiLM], tiny_bilm: BiLM) -> Iterator[str]:
    """The argument `path` of a BiLM. `tiny_bilm` is prepared for it; for other models use `tune`."""
    tune(tiny_bilm)
    yield _execution[0]
    tiny_bilm.fast.tuning = Tuning()


@pytest.fixture
def load_random(tmp_path: Path) -> Callable[..., BiLM]:
    """An Official -> the BiLM that its files hold."""

    def load(official: Official) -> BiLM:
        folder = tmp_path / "official"
        options, weights = official.write(folder)
        vocabulary = None
        if "embedding" in official.arrays:
            vocabulary = folder / "words.txt"
            vocabulary.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
        return torchelmo.load_official(options, weights, vocabulary)

    return load


@pytest.fixture(scope="session")
def tiny_official() -> Official:
    """Its values are of the size of trained ones: an absolute tolerance means what it says."""
    return random_official(
        seed=11,
        filters=((1, 4), (2, 4), (3, 6)),
        n_highway=2,
        projection_dim=8,
        cell_dim=16,
        scale=0.4,
        encoder_scale=0.4,
    )


@pytest.fixture(scope="session")
def tiny_bilm(tiny_official: Official, tmp_path_factory: pytest.TempPathFactory) -> BiLM:
    """A character model with two layers and 16 dimensions. Tests that change it take a deep copy."""
    return torchelmo.load_official(*tiny_official.write(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> Iterator[None]:
    """What the tests write need not survive a power cut, and the wait for a busy disk adds up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def bilm_folder(tiny_bilm: BiLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as a model folder."""
    folder = tmp_path_factory.mktemp("bilm") / "tiny"
    tiny_bilm.save(folder)
    return folder
