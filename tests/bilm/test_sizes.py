"""The sizes of the published models, and files of the largest."""

import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch
from official_files import random_official

import torchelmo
from torchelmo import BiLM, BiLMConfig, Elmo

PAPER_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
SIZES = {
    "original": ({}, 93.6),
    "medium": ({"cell_dim": 2048, "projection_dim": 256, "n_highway": 1}, 28.0),
    "small": ({"cell_dim": 1024, "projection_dim": 128, "n_highway": 1}, 13.6),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameters_of_the_published_models(name):
    changes, millions = SIZES[name]
    with torch.device("meta"):
        bilm = BiLM(BiLMConfig(**changes))
    # The published counts leave out the row of the character table that marks padding.
    count = sum(parameter.numel() for parameter in bilm.parameters())
    assert round(count / 1e6, 1) == millions


def test_defaults_are_the_papers():
    config = BiLMConfig()
    assert config.filters == PAPER_FILTERS
    assert (config.cell_dim, config.projection_dim, config.n_layers, config.n_highway) == (4096, 512, 2, 2)
    assert (config.cell_clip, config.projection_clip, config.max_characters) == (3.0, 3.0, 50)
    assert config.residual
    assert config.activation == "relu"


@pytest.fixture(scope="module")
def original_files(tmp_path_factory):
    """Official files of the original size, 374 MB of random numbers."""
    folder = tmp_path_factory.mktemp("original")
    tiny = random_official(char_dim=16, filters=PAPER_FILTERS, n_highway=0, max_characters=50, cell_dim=1)
    tiny.options["lstm"] |= {"dim": 4096, "projection_dim": 512}
    tiny.options["char_cnn"]["n_highway"] = 2
    options, weights = tiny._replace(arrays={}).write(folder)
    rng = np.random.default_rng(0)
    with h5py.File(weights, "w") as file, torch.device("meta"):
        for dataset in torchelmo.formats.layout.official_layout(BiLMConfig()):
            scale = np.float32(1.0 / np.sqrt(dataset.shape[-2] if len(dataset.shape) > 1 else 100))
            file[dataset.name] = rng.random(dataset.shape, dtype=np.float32) * scale - scale / 2
    yield options, weights
    weights.unlink()


def test_a_file_of_the_original_size_loads_and_embeds(original_files):
    bilm = torchelmo.load_official(*original_files)
    assert bilm.config == BiLMConfig()
    (vectors,) = Elmo(bilm).embed([["I", "took", "a", "bow"]])
    assert vectors.shape == (3, 4, 1024)
    assert np.isfinite(vectors).all()
    with torch.no_grad():
        plain = bilm(Elmo(bilm).encode([["I", "took", "a", "bow"]]), path="reference").layers[:, 0, 1:-1]
    np.testing.assert_allclose(vectors, plain, rtol=0, atol=5e-6)


def test_loading_does_not_wake_the_compiler(tmp_path):
    """PyTorch imports its compiler, for seconds, where a random number is drawn on the meta device."""
    config = BiLMConfig(filters=((1, 4),), activation="tanh", projection_dim=4, cell_dim=4, softmax_words=9)
    BiLM(config).save(tmp_path)
    torchelmo.save_official(BiLM(config), tmp_path / "official" / "options.json", tmp_path / "official" / "w.hdf5")
    code = "import sys, torch, torchelmo; torchelmo.load(sys.argv[1]); torchelmo.load(sys.argv[1] + '/official');"
    code += "print('sympy' in sys.modules)"  # which comes with it, and with nothing else
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]
