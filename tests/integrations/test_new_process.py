"""What the integrations do in a new process. One process for all of them: it takes seconds to import PyTorch."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from torchelmo.integrations.sklearn import ElmoVectorizer

TEXTS = ["It rained all day.", "Snow fell."]
CODE = """
import json, pickle, sys, torch
before = set(sys.modules)
import torchelmo
torchelmo.SentenceEncoder, torchelmo.Elmo
import torchelmo.integrations
names = ["sklearn", "sentence_transformers", "transformers", "gensim", "spacy", "pandas"]
loaded = [name for name in names if name in set(sys.modules) - before]
with open(sys.argv[1], "rb") as stream:
    vectorizer, texts = pickle.load(stream)
vectors = vectorizer.transform(texts).tolist()
import spacy
component = type(spacy.blank("de").add_pipe("elmo")).__name__
print(json.dumps({"loaded": loaded, "vectors": vectors, "component": component}))
"""


@pytest.fixture(scope="module")
def vectorizer(bilm_folder):
    return ElmoVectorizer(str(bilm_folder))


@pytest.fixture(scope="module")
def found(vectorizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("new")
    (folder / "pickle").write_bytes(pickle.dumps((vectorizer, TEXTS)))
    command = [sys.executable, "-c", CODE, str(folder / "pickle")]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_importing_the_package_and_its_classes_loads_no_integration(found):
    assert found["loaded"] == []


def test_a_pickled_vectorizer_loads_its_model(found, vectorizer):
    np.testing.assert_allclose(found["vectors"], vectorizer.transform(TEXTS), atol=1e-6)


def test_spacy_finds_the_component_without_an_import(found):
    assert found["component"] == "ElmoComponent"
