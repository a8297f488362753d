"""The names that users rely on."""

import importlib.metadata
import inspect
import subprocess
import sys

import pytest
from facts import mentions
from torch import nn

import torchelmo

NAMES = [
    "BiLM",
    "BiLMConfig",
    "Elmo",
    "ScalarMix",
    "SentenceEncoder",
    "__version__",
    "load",
    "load_official",
    "save_official",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_package_has_the_name(name):
    assert hasattr(torchelmo, name)
    assert name in torchelmo.__all__


def test_all_names_exist_and_have_no_doubles():
    assert len(set(torchelmo.__all__)) == len(torchelmo.__all__)
    for name in torchelmo.__all__:
        assert hasattr(torchelmo, name)


def test_completion_shows_all_names():
    assert set(torchelmo.__all__) <= set(dir(torchelmo))


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match=mentions("'torchelmo'", "'Elmos'")):
        torchelmo.Elmos  # noqa: B018


def test_help_does_not_wait_for_torch():
    code = "import sys, torchelmo.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_is_that_of_the_installed_package():
    assert torchelmo.__version__ == importlib.metadata.version("torchelmo")


@pytest.mark.parametrize("name", ["BiLM", "Elmo", "ScalarMix"])
def test_models_are_modules(name):
    assert issubclass(getattr(torchelmo, name), nn.Module)


def test_elmo_takes_the_arguments_of_the_contract():
    parameters = inspect.signature(torchelmo.Elmo).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    expected = {"n_mixes": 1, "dropout": 0.5, "layer_norm": False, "freeze": True, "keep_boundaries": False}
    assert {name: defaults[name] for name in expected} == expected
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in expected)


def test_embed_takes_the_arguments_of_the_contract():
    parameters = inspect.signature(torchelmo.Elmo.embed).parameters
    assert {"layers", "batch_tokens", "precision", "state", "progress"} <= parameters.keys()
    assert (parameters["precision"].default, parameters["state"].default) == ("float32", "reset")


@pytest.mark.parametrize("name", ["Elmo", "batch_to_ids", "ElmoTokenEmbedder", "ElmoEmbedder"])
def test_compat_has_the_name(name):
    from torchelmo.compat import allennlp

    assert hasattr(allennlp, name)
