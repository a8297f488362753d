"""Models of AllenNLP, which contain an ELMo: config.json + weights.th."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from facts import mentions
from official_files import Official, random_official

import torchelmo
from torchelmo import Elmo
from torchelmo.compat import allennlp
from torchelmo.errors import ConfigError, TorchelmoError, WeightsError
from torchelmo.formats.convert import convert

SENTENCES = [["the", "bow"], ["and", "zebra", "a"]]
PREFIX = "_text_field_embedder.token_embedder_elmo._elmo."
SETTINGS = {
    "model": {"text_field_embedder": {"token_embedders": {"elmo": {"type": "elmo_token_embedder", "dropout": 0.5}}}}
}
NAME = f"{PREFIX}_elmo_lstm._elmo_lstm.forward_layer_0.state_linearity.bias"


@pytest.fixture
def official() -> Official:
    return random_official(max_characters=50)


@pytest.fixture
def theirs(official: Official, tmp_path: Path) -> allennlp.Elmo:
    options, weights = official.write(tmp_path / "official")
    elmo = allennlp.Elmo(options, weights, 2, dropout=0.0, stateful=False)
    with torch.no_grad():
        for parameter in elmo.scalar_mix_1.parameters():
            parameter.normal_()
    return elmo.eval()


@pytest.fixture
def folder(theirs: allennlp.Elmo, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "vocabulary").mkdir(parents=True)
    (folder / "vocabulary" / "tokens.txt").write_text("@@UNKNOWN@@\nthe\n")
    (folder / "config.json").write_text(json.dumps(SETTINGS))
    task = {"encoder.weight": torch.ones(2, 3), "crf.transitions": torch.zeros(2, 2)}
    torch.save(task | {PREFIX + name: tensor for name, tensor in theirs.state_dict().items()}, folder / "weights.th")
    return folder


def assert_mixes(source: Path | str, theirs: allennlp.Elmo) -> None:
    elmo = Elmo(source, mixes="published", dropout=0.0).eval()
    assert len(elmo.mixes) == 2
    ids = elmo.encode(SENTENCES)
    expected = theirs(ids)["elmo_representations"]
    for found, tensor in zip(elmo(ids).mixes, expected, strict=True):
        np.testing.assert_allclose(found.detach(), tensor.detach(), atol=1e-5)


def test_the_biLM_and_the_mixes(folder, theirs, tmp_path):  # noqa: N802
    assert_mixes(folder, theirs)
    convert(folder, tmp_path / "converted")
    assert_mixes(tmp_path / "converted", theirs)


@pytest.mark.parametrize("legacy", [True, False])
def test_an_archive(legacy, folder, theirs, tmp_path):
    """Older versions of PyTorch wrote another format."""
    weights = torch.load(folder / "weights.th", weights_only=True)
    torch.save(weights, folder / "weights.th", _use_new_zipfile_serialization=not legacy)
    assert_mixes(shutil.make_archive(str(tmp_path / "model"), "gztar", folder), theirs)


def test_an_elmo_without_an_embedder(folder, theirs):
    """A model that uses Elmo directly, and the folder of a training."""
    (folder / "weights.th").unlink()
    torch.save({f"_elmo.{name}": tensor for name, tensor in theirs.state_dict().items()}, folder / "best.th")
    assert_mixes(folder, theirs)


def test_options_in_the_archive(folder):
    """Without them, the settings are those of the published models."""
    assert torchelmo.load(folder).config.cell_clip == 3
    (folder / "options.json").write_text(json.dumps(random_official(cell_clip=None, residual=False).options))
    bilm = torchelmo.load(folder)
    assert (bilm.config.cell_clip, bilm.config.residual) == (None, False)


def test_options_that_allennlp_put_into_its_archive(folder, tmp_path):
    options = random_official(cell_clip=None, residual=False).options
    (folder / "fta").mkdir()
    key = "model.text_field_embedder.token_embedders.elmo.options_file"
    (folder / "fta" / key).write_text(json.dumps(options))
    for source in (folder, shutil.make_archive(str(tmp_path / "model"), "gztar", folder)):
        bilm = torchelmo.load(source)
        assert (bilm.config.cell_clip, bilm.config.residual) == (None, False)


def test_names_of_data_parallel(folder, theirs):
    weights = torch.load(folder / "weights.th", weights_only=True)
    torch.save({f"module.{name}": tensor for name, tensor in weights.items()}, folder / "weights.th")
    assert_mixes(folder, theirs)


def test_the_layer_norm_of_an_elmo_without_an_embedder(folder):
    (folder / "config.json").write_text(
        json.dumps({"model": {"elmo": {"options_file": "x", "weight_file": "y", "do_layer_norm": True}}})
    )
    assert [mix.layer_norm for mix in Elmo(folder, mixes="published").mixes] == [True, True]


def test_the_layer_norm(folder, tmp_path):
    settings = json.loads(json.dumps(SETTINGS))
    settings["model"]["text_field_embedder"]["token_embedders"]["elmo"]["do_layer_norm"] = True
    (folder / "config.json").write_text(json.dumps(settings))
    assert [mix.layer_norm for mix in Elmo(folder, mixes="published").mixes] == [True, True]


def change(folder: Path, **tensors: object) -> None:
    weights = torch.load(folder / "weights.th", weights_only=True)
    weights.update(tensors)
    torch.save({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / "weights.th")


@pytest.mark.parametrize(
    ("tensor", "fact"),
    [
        (None, NAME),
        (torch.zeros(3), (3,)),
        (torch.full((28,), float("nan")), "NaN"),
        (torch.zeros(28, dtype=torch.int64), "int64"),
        (torch.zeros(1).expand(28), (28,)),
        (torch.zeros(28, device="meta"), (28,)),
        ([1.0] * 28, NAME),
    ],
)
def test_wrong_weights(tensor, fact, folder):
    change(folder, **{NAME: tensor})
    with pytest.raises(WeightsError, match=mentions("weights.th", fact)):
        torchelmo.load(folder)


def test_a_model_without_elmo(folder):
    torch.save({"encoder.weight": torch.ones(2, 3)}, folder / "weights.th")
    with pytest.raises(WeightsError, match=mentions("weights.th", "encoder.weight", "ELMo")):
        torchelmo.load(folder)


def test_two_elmos(folder, theirs):
    names = theirs.state_dict()
    torch.save({f"{one}._elmo.{name}": names[name] for one in "ab" for name in names}, folder / "weights.th")
    with pytest.raises(WeightsError, match=mentions("a._elmo.", "b._elmo.")):
        torchelmo.load(folder)


def test_a_compressed_record(folder, tmp_path):
    """PyTorch does not compress, so a file that expands is a bomb."""
    import zipfile

    with zipfile.ZipFile(folder / "weights.th") as old:
        files = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(folder / "weights.th", "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in files.items():
            new.writestr(name, content + bytes(10_000))
    with pytest.raises(WeightsError, match=mentions("weights.th")):
        torchelmo.load(folder)


@pytest.mark.parametrize("mixes", ['{"initial": [1]}', '[{"initial": [1]}]', '[{"initial": [1, 2, 3], "gamma": "x"}]'])
def test_damaged_mixes_in_a_model_folder(mixes, folder, tmp_path):
    torchelmo.load(folder).save(tmp_path / "saved")
    path = tmp_path / "saved" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mixes": json.loads(mixes)}))
    with pytest.raises(ConfigError, match=mentions("config.json", "mixes")):
        torchelmo.load(tmp_path / "saved")


def test_config_json_that_is_damaged(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(TorchelmoError, match=mentions("config.json")):
        torchelmo.load(folder)
