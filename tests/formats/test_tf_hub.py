"""TF-Hub modules: the variables of a graph for inference, without options."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from facts import mentions
from official_files import Official, random_official
from oracle import Oracle
from tf_files import write_checkpoint

import torchelmo
from torchelmo import Elmo
from torchelmo.errors import ConfigError, MissingFileError, WeightsError
from torchelmo.formats.convert import convert, describe

SENTENCE = ["the", "bow", "and", "zebra"]
MIX = {
    "aggregation/elmo_output_ELMo_W": np.array([0.5, -1.0, 2.0], np.float32),
    "aggregation/elmo_output_ELMo_gamma": np.array([1.5], np.float32),
}
NAMES = {"LSTMCell": "rnn/lstm_cell", "/W_0": "/kernel", "/B": "/bias", "/W_P_0": "/projection/kernel"}


def module_variables(official: Official, scope: str = "bilm/") -> dict[str, np.ndarray]:
    """The names of DeepPavlov's modules, with LSTM states and a row for padding."""
    found = {f"{scope}Variable": np.zeros((3, 7)), f"{scope}Variable_1": np.zeros((3, 5)), "global_step": np.zeros(())}
    for name, array in official.arrays.items():
        for old, new in NAMES.items():
            name = name.replace(old, new)
        found[scope + name] = np.pad(array, ((1, 0), (0, 0))) if name == "char_embed" else array
    return found


@pytest.fixture
def official() -> Official:
    return random_official(max_characters=50)


@pytest.fixture
def module(official: Official, tmp_path: Path) -> Path:
    folder = tmp_path / "module"
    write_checkpoint(folder / "variables", module_variables(official) | MIX, "variables")
    (folder / "saved_model.pb").write_bytes(b"\x08\x01")
    (folder / "tfhub_module.pb").write_bytes(b"\x08\x03")
    return folder


def assert_layers(bilm: torchelmo.BiLM, official: Official) -> None:
    expected = Oracle(official.options, official.arrays).layers(SENTENCE)[0]
    ids = Elmo(bilm).encode([SENTENCE])
    for path in ("reference", "fast"):
        np.testing.assert_allclose(bilm(ids, path=path).layers[:, 0].detach(), expected, atol=1e-5)


def test_a_module(module, official, tmp_path):
    bilm = torchelmo.load(module)
    assert (bilm.config.cell_clip, bilm.config.projection_clip, bilm.config.residual) == (3, 3, True)
    assert_layers(bilm, official)
    convert(module, tmp_path / "converted")
    assert_layers(torchelmo.load(tmp_path / "converted"), official)
    assert {"variables.index", "variables.data-00000-of-00001"} <= describe(module)["files"].keys()


@pytest.mark.parametrize("settings", [{"n_layers": 1, "n_highway": 0}, {"n_layers": 3}, {"filters": ((1, 5),)}])
def test_shapes_are_those_of_the_variables(settings, tmp_path):
    settings = {"char_projection": settings.get("filters") is None, **settings}
    official = random_official(max_characters=50, **settings)
    write_checkpoint(tmp_path / "variables", module_variables(official), "variables")
    assert_layers(torchelmo.load(tmp_path), official)


def test_another_scope(official, tmp_path):
    write_checkpoint(tmp_path / "variables", module_variables(official, "module/bilm/"), "variables")
    assert_layers(torchelmo.load(tmp_path), official)


@pytest.mark.parametrize("top", [True, False])
def test_an_archive(top, module, official, tmp_path):
    root, base = (module, ".") if top else (module.parent, module.name)
    assert_layers(torchelmo.load(shutil.make_archive(str(tmp_path / "elmo_ru"), "gztar", root, base)), official)


def test_the_mix(module, tmp_path):
    """γ softmax(W + 1/3), also after a conversion."""
    convert(module, tmp_path / "converted")
    expected = 1.5 * np.exp([0.5, -1.0, 2.0]) / np.exp([0.5, -1.0, 2.0]).sum()
    for source in (module, tmp_path / "converted"):
        elmo = Elmo(source, mixes="published")
        layers = elmo.embed([SENTENCE])[0]
        np.testing.assert_allclose(
            elmo.embed([SENTENCE], layers="mix")[0], np.tensordot(expected, layers, 1), atol=1e-5
        )


def test_a_model_without_published_mixes(tiny_bilm):
    with pytest.raises(ConfigError, match=mentions("mixes")):
        Elmo(tiny_bilm, mixes="published")


def test_other_names_are_listed(official, tmp_path):
    variables = {f"model/dense_{i}/kernel": np.zeros((2, 3)) for i in range(50)}
    write_checkpoint(tmp_path / "variables", variables, "variables")
    with pytest.raises(WeightsError, match=mentions("model/dense_0/kernel", (2, 3), "10 more")):
        torchelmo.load(tmp_path)
    write_checkpoint(tmp_path / "variables", {"bilm/char_embed": np.zeros((262, 4))}, "variables")
    with pytest.raises(WeightsError, match=mentions("variables.index", "W_0")):
        torchelmo.load(tmp_path)


def test_data_that_is_missing(module):
    (module / "variables" / "variables.data-00000-of-00001").unlink()
    with pytest.raises(MissingFileError, match=mentions("variables.data-00000-of-00001")):
        torchelmo.load(module)
