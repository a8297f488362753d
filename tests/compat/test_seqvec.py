"""bio_embeddings' class for SeqVec."""

import numpy as np
import pytest
from facts import mentions

from torchelmo import Elmo
from torchelmo.compat.seqvec import SeqVecEmbedder
from torchelmo.errors import ConfigError, InputError, MissingFileError

PROTEINS = ["MALLHSARV", "M", "ACDEFGHIKLM"]


@pytest.fixture
def embedder(files):
    options, weights = files
    return SeqVecEmbedder(weights_file=str(weights), options_file=str(options), device="cpu")


def test_embeddings(embedder, bilm):
    assert (embedder.name, embedder.embedding_dimension, embedder.number_of_layers) == ("seqvec", 12, 3)
    expected = Elmo(bilm).embed(list(map(list, PROTEINS)))
    for found in (
        embedder.embed_batch(PROTEINS),
        embedder.embed_many(iter(PROTEINS), 5),
        map(embedder.embed, PROTEINS),
    ):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    reduced = embedder.reduce_per_protein(expected[0])
    np.testing.assert_allclose(reduced, expected[0].sum(0).mean(0))


@pytest.mark.parametrize("names", [("options_file", "weights_file"), ("options.json", "weights.hdf5")])
def test_a_directory(files, embedder, tmp_path, names):
    for file, name in zip(files, names):
        (tmp_path / name).write_bytes(file.read_bytes())
    other = SeqVecEmbedder(warmup_rounds=0, model_directory=tmp_path)
    np.testing.assert_array_equal(other.embed("MALL"), embedder.embed("MALL"))


def test_errors(files, embedder, tmp_path):
    with pytest.raises(ConfigError, match=mentions("weights_file", "options_file", "model_directory")):
        SeqVecEmbedder(weights_file=files[1])
    with pytest.raises(MissingFileError):
        SeqVecEmbedder(model_directory=tmp_path / "none")
    with pytest.raises(InputError, match="5"):
        embedder.embed(5)
