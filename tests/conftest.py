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
from torchelmo.bilm.fast import inference as packed
from torchelmo.bilm.fast import inference as packed_lstm
from torchelmo.bilm.fast import products

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


@pytest.fixture(params=["plain", "packed", "packed as for large models"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tiny_bilm: BiLM) -> Iterator[str]:
    """Each of the ways in which a BiLM computes the same numbers."""
    tiny_bilm._fast.clear()  # it is shared, and may have been prepared for another way
    if request.param == "packed as for large models":
        monkeypatch.setattr(packed, "_PAIRED_VALUES", 0)
        monkeypatch.setattr(packed_lstm, "_CHUNK_VALUES", 300)
        monkeypatch.setattr(products, "_MIN_PACKED", 0)
    yield str(request.param.split()[0])
    tiny_bilm._fast.clear()


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
