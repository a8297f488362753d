"""torchelmo info and torchelmo convert."""

import json
import os
import re
import sys

import h5py
import numpy as np
import pytest
import torch
from facts import mentions
from official_files import WORDS, random_official

import torchelmo
from torchelmo import BiLM
from torchelmo.formats.load import PRETRAINED


@pytest.fixture
def official(tiny_official, tmp_path):
    tiny_official.write(tmp_path / "official")
    return tmp_path / "official"


@pytest.fixture
def words(tmp_path):
    """A model that reads words, with the vocabulary beside it."""
    folder = tmp_path / "words"
    random_official(words=len(WORDS)).write(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return folder


def same_tensors(one: BiLM, other: BiLM) -> bool:
    ours, theirs = one.own_tensors(), other.own_tensors()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_info_in_plain_lines(call, official, tiny_bilm):
    result = call("info", official)
    assert (result.code, result.err) == (0, "")
    rows = dict(line.split(": ", 1) for line in result.out.splitlines())
    total = sum(parameter.numel() for parameter in tiny_bilm.parameters())
    assert re.search(mentions("options.json", "weights.hdf5"), rows["origin"])
    assert re.search(mentions(2, "both", "residual"), rows["layers"])
    assert "16" in rows["vectors"]
    assert sorted(re.findall(r"±?\d+", rows["LSTM"])) == ["16", "8", "±3", "±3"]
    assert re.search(mentions("1×4 2×4 3×6", 14, "relu"), rows["filters"])
    assert rows["highways"] == "2"
    assert f"{total:,}" in rows.values()
    assert rows["vocabulary"] == "none"
    assert re.search(r"(?=.*options.json 0.0 MB)(?=.*weights.hdf5 \d.\d MB)", result.out)


def test_info_lists_options_by_their_own_name(call, official):
    (official / "options.json").rename(official / "elmo_2x8_options.json")
    files = json.loads(call("info", official, "--json").out)["files"]
    assert sorted(files) == ["elmo_2x8_options.json", "weights.hdf5"]


def test_info_as_json(call, official, words, tiny_bilm):
    about = json.loads(call("info", official, "--json").out)
    parameters = about["parameters"]
    assert parameters["encoder"] == sum(p.numel() for p in tiny_bilm.encoder.parameters())
    assert parameters["encoder"] + parameters["lstm"] + parameters["softmax"] == parameters["total"]
    assert about["config"]["cell_dim"] == 16
    assert about["files"]["weights.hdf5"] == os.path.getsize(official / "weights.hdf5")
    assert about["vocabulary"] is None
    about = json.loads(call("info", words, "--json").out)
    assert about["vocabulary"] == about["config"]["n_words"] == len(WORDS)


def test_info_without_a_model_is_about_our_own(call):
    about = json.loads(call("info", "--json").out)
    assert about["model"] == "english-small"
    assert os.path.samefile(about["card"], PRETRAINED / "english-small" / "README.md")
    assert f"card: {about['card']}" in call("info").out


def test_a_model_without_a_card(call, official):
    assert json.loads(call("info", official, "--json").out)["card"] is None
    assert "card" not in call("info", official).out


def test_info_on_a_word_model(call, words):
    result = call("info", words)
    rows = dict(line.split(": ", 1) for line in result.out.splitlines())
    assert re.search(rf"\b{len(WORDS)}\b", rows["input"])
    assert re.search(rf"\b{len(WORDS)}\b", rows["vocabulary"])


def test_info_on_a_terminal_is_a_table(call, model, monkeypatch):
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
    result = call("info", model)
    assert "│" in result.out
    assert re.search(r"vectors.*16", result.out)


def test_official_files_become_a_folder_and_back(call, official, tmp_path, tiny_bilm):
    result = call("convert", official, tmp_path / "folder")
    assert result.code == 0, result.err
    assert re.search(mentions(tmp_path / "folder", "config.json", "model.safetensors"), result.out)
    assert re.search(r"\b\d+\.\d MB\b", result.out)
    assert re.search(mentions("5 sentences", "0.0e+00"), result.out)
    assert same_tensors(torchelmo.load(tmp_path / "folder"), tiny_bilm)

    result = call("convert", tmp_path / "folder", tmp_path / "back")
    assert result.code == 0, result.err
    assert re.search(mentions(tmp_path / "back", "options.json", "weights.hdf5"), result.out)
    before = json.loads((official / "options.json").read_text(encoding="utf-8"))
    assert json.loads((tmp_path / "back" / "options.json").read_text(encoding="utf-8")) == before
    with h5py.File(official / "weights.hdf5") as one, h5py.File(tmp_path / "back" / "weights.hdf5") as other:
        names: list[str] = []
        one.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        assert names
        assert all(np.array_equal(one[name], other[name]) for name in names)


def test_a_word_model_keeps_its_vocabulary(call, words, tmp_path):
    for source, target in (("words", "folder"), ("folder", "back")):
        result = call("convert", tmp_path / source, tmp_path / target)
        assert result.code == 0, result.err
        assert re.search(mentions("5 sentences", "0.0e+00"), result.out)
        assert list(torchelmo.load(tmp_path / target).vocabulary or []) == WORDS


def test_the_form_can_be_chosen(call, model, tmp_path):
    assert call("convert", model, tmp_path / "half", "--to", "folder", "--dtype", "float16").code == 0
    small = (tmp_path / "half" / "model.safetensors").stat().st_size
    assert small < 0.6 * (model / "model.safetensors").stat().st_size
    assert call("convert", model, tmp_path / "official", "--to", "official").code == 0
    assert sorted(os.listdir(tmp_path / "official")) == ["options.json", "weights.hdf5"]


def test_half_precision_says_how_much_it_changes(call, official, tmp_path):
    result = call("convert", official, tmp_path / "half", "--dtype", "float16")
    assert result.code == 0
    difference = float(re.search(r"\d\.\de[-+]\d\d", result.out)[0])
    assert 0 < difference < 0.05


def test_overwrite_replaces_a_model(call, official, words, tmp_path, tiny_bilm):
    target = tmp_path / "target"
    assert call("convert", words, target).code == 0
    result = call("convert", official, target)
    assert result.code == 2
    assert re.search(mentions(target, "--overwrite"), result.err)
    assert call("convert", official, target, "--overwrite").code == 0
    assert same_tensors(torchelmo.load(target), tiny_bilm)
    assert torchelmo.load(target).vocabulary is None


def test_overwrite_leaves_no_vocabulary_of_the_model_before(call, model, words, tmp_path, tiny_bilm):
    target = tmp_path / "target"
    assert call("convert", words, target, "--to", "official").code == 0
    assert call("convert", model, target, "--overwrite").code == 0
    assert same_tensors(torchelmo.load(target), tiny_bilm)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("OFFICIAL", "OFFICIAL"), ["official", "SOURCE"]),
        (("OFFICIAL", "file"), ["file"]),
        (("nowhere", "target"), ["nowhere"]),
        (("MODEL", "target", "--dtype", "float16"), ["--dtype float16", "float32", "--to folder"]),
        (("MODEL", "OFFICIAL", "--to", "folder", "--overwrite"), ["official", "options.json", "weights.hdf5"]),
        (("MODEL", "other", "--overwrite"), ["other.hdf5"]),
        (("MODEL", "target", "--to", "paper"), ["--to", "paper"]),
    ],
)
def test_a_wrong_call_is_refused(call, official, model, tmp_path, monkeypatch, arguments, facts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "other.hdf5").write_text("", encoding="utf-8")
    places = {"OFFICIAL": official, "MODEL": model}
    before = sorted(tmp_path.rglob("*"))
    result = call("convert", *(places.get(argument, argument) for argument in arguments))
    assert re.search(mentions(*facts), result.err)
    assert result.code == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_that_the_format_has_no_place_for(call, tmp_path, tiny_bilm):
    config = torchelmo.BiLMConfig(
        direction="backward", filters=((1, 4),), projection_dim=4, cell_dim=4, char_dim=2, n_layers=1
    )
    BiLM(config).save(tmp_path / "backward")
    result = call("convert", tmp_path / "backward", tmp_path / "target")
    assert result.code == 1
    assert "backward" in result.err


def test_a_conversion_that_changes_the_output_fails(call, official, tmp_path, monkeypatch):
    save = BiLM.save

    def save_wrongly(self: BiLM, folder, dtype=None):
        with torch.no_grad():
            next(self.parameters()).add_(0.1)
        save(self, folder, dtype)
        with torch.no_grad():
            next(self.parameters()).sub_(0.1)

    monkeypatch.setattr(BiLM, "save", save_wrongly)
    result = call("convert", official, tmp_path / "target")
    assert result.code == 1
    assert re.search(mentions(tmp_path / "target", official), result.err)
    assert float(re.search(r"\d\.\de[-+]\d\d", result.err)[0]) > 0
