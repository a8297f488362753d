"""The output of the published program for a tiny model: fixtures/bilm_tiny/README.md says how it was made."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import torchelmo

FOLDER = Path(__file__).parent / "fixtures" / "bilm_tiny"
N_ROWS, N_BATCHES = 3, 10  # three running texts side by side, ten sentences each


@pytest.fixture(scope="module")
def bilm() -> torchelmo.BiLM:
    return torchelmo.load_official(FOLDER / "options.json", FOLDER / "lm_weights.hdf5")


@pytest.fixture(scope="module")
def texts() -> list[list[list[str]]]:
    rows = json.loads((FOLDER / "lm_embeddings_sentences.json").read_text(encoding="utf-8"))
    texts = [[sentence.split() for sentence in row] for row in rows]
    assert [len(text) for text in texts] == [N_BATCHES] * N_ROWS
    return texts


@pytest.fixture(scope="module")
def expected() -> list[list[np.ndarray]]:
    """For each row and sentence, the top layer of both directions side by side."""
    rows = []
    for row in range(N_ROWS):
        with h5py.File(FOLDER / f"lm_embeddings_{row}.hdf5", "r") as file:
            arrays = [file[str(i)][()] for i in range(N_BATCHES)]  # (2, n_tokens, 16)
        rows.append([np.concatenate(list(array), axis=-1) for array in arrays])
    return rows


def test_all_sentences_in_batches_with_carried_state(bilm, texts, expected, path, tune):
    tune(bilm)
    elmo, state = torchelmo.Elmo(bilm), None
    for i in range(N_BATCHES):
        tokens = [text[i] for text in texts]
        with torch.no_grad():
            out = bilm(elmo.encode(tokens), state, path=path)
        state = out.state
        for row in range(N_ROWS):
            vectors = out.layers[-1, row, 1 : len(tokens[row]) + 1].numpy()
            np.testing.assert_allclose(vectors, expected[row][i], rtol=0, atol=1e-5)


def test_all_sentences_by_embed_with_carried_state(bilm, texts, expected):
    elmo = torchelmo.Elmo(bilm)
    for row in range(N_ROWS):
        arrays = elmo.embed(texts[row], layers="top", state="carry")
        assert len(arrays) == N_BATCHES
        for i in range(N_BATCHES):
            np.testing.assert_allclose(arrays[i], expected[row][i], rtol=0, atol=1e-5)


def test_without_carried_state_only_the_first_sentences_are_equal(bilm, texts, expected):
    arrays = torchelmo.Elmo(bilm).embed(texts[0], layers="top")
    np.testing.assert_allclose(arrays[0], expected[0][0], rtol=0, atol=1e-5)
    assert all(abs(arrays[i] - expected[0][i]).max() > 1e-3 for i in range(1, N_BATCHES))
