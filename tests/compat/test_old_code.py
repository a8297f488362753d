"""flair and SeqVec, as they are in their wheels, run with torchelmo in the place of AllenNLP.

Neither is installed with torchelmo: flair needs other versions of some packages, SeqVec needs AllenNLP 0.9. `make
test-old-code` runs these tests in an environment with both.
"""

import importlib.util
import subprocess
import sys

import h5py
import numpy as np
import pytest

from torchelmo.compat.allennlp import ElmoEmbedder

FLAIR = """\
import sys

import numpy as np
from flair.data import Sentence
from flair.embeddings import ELMoEmbeddings

options, weights, out = sys.argv[1:]
arrays = {}
for mode in ("all", "top", "average"):
    embeddings = ELMoEmbeddings(options_file=options, weight_file=weights, embedding_mode=mode)
    sentences = [Sentence("I took a bow", use_tokenizer=False), Sentence("bow and arrow", use_tokenizer=False)]
    embeddings.embed(sentences)
    for i, sentence in enumerate(sentences):
        arrays[f"{mode}{i}"] = np.stack([token.embedding.numpy() for token in sentence])
np.savez(out, **arrays)
"""
SENTENCES = [["I", "took", "a", "bow"], ["bow", "and", "arrow"]]


def installed(name):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}: make test-old-code")


def run(*arguments):
    command = [sys.executable, "-m", "torchelmo.compat.allennlp", *arguments]
    subprocess.run(list(map(str, command)), check=True)


@pytest.mark.slow
@installed("flair")
def test_flair(files, tmp_path):
    script, out = tmp_path / "flair_script.py", tmp_path / "out.npz"
    script.write_text(FLAIR)
    run(script, *files, out)
    embedder = ElmoEmbedder(*files)
    embedder.embed_batch([["hello"]])  # flair does so to find the width, and AllenNLP's state is kept
    layers = embedder.embed_batch(SENTENCES)
    with np.load(out) as found:
        for i, expected in enumerate(layers):
            for mode, array in (
                ("all", np.concatenate(expected, axis=1)),
                ("top", expected[-1]),
                ("average", expected.mean(axis=0)),
            ):
                np.testing.assert_allclose(found[f"{mode}{i}"], array, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@installed("seqvec")
def test_seqvec(files, tmp_path):
    proteins = {"P12345": "MALLHSARV", "Q99999": "ACDEFGHIKLM"}
    (tmp_path / "p.fasta").write_text("".join(f">sp|{id}|X\n{sequence}\n" for id, sequence in proteins.items()))
    model = tmp_path / "model"
    model.mkdir()
    for file, name in zip(files, ("options.json", "weights.hdf5")):
        (model / name).write_bytes(file.read_bytes())
    for layer in ("sum", "all"):
        out = tmp_path / f"{layer}.h5"
        run("-m", "seqvec.seqvec", "-i", tmp_path / "p.fasta", "-o", out, "--model", model, "--cpu", "--layer", layer)
        layers = ElmoEmbedder(*files).embed_batch(list(map(list, proteins.values())))
        with h5py.File(out) as file:
            for id, array in zip(proteins, layers):
                expected = array.sum(axis=0) if layer == "sum" else np.concatenate(array, axis=1)
                np.testing.assert_allclose(file[id][()], expected, rtol=1e-5, atol=1e-6)
