"""The registry of published models, and the files that a user has downloaded."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from facts import mentions
from official_files import random_official

import torchelmo
from torchelmo.cli import main
from torchelmo.errors import ConfigError, MissingFileError, WeightsError
from torchelmo.files import content_hash
from torchelmo.formats import registry
from torchelmo.formats.registry import PublishedModel, find_download, find_published, published_models

ORIGINAL = "elmo_2x4096_512_2048cnn_2xhighway"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("TORCHELMO_HOME", str(folder))
    return folder


def test_the_registry():
    models = published_models()
    assert len({model.name for model in models}) == len(models)
    assert sum(model.format == "efml" for model in models) == 44
    assert all(model.format in ("folder", "official", "checkpoint", "tf-hub", "efml") for model in models)
    assert find_published("nlpl:179").addresses == ("http://vectors.nlpl.eu/repository/11/179.zip",)
    assert {model.name for model in published_models("no")} == {f"nlpl:{i}" for i in (210, 211, 217, 218)}
    assert find_published("elmo") is None


def test_a_file_that_was_downloaded(home, tmp_path):
    random_official().write(tmp_path / "files")
    archive = shutil.make_archive(str(home / "210"), "zip", tmp_path / "files")
    assert torchelmo.load("nlpl:210").source == archive
    Path(archive).rename(home / "nlpl-210.zip")
    assert torchelmo.load("nlpl:210").config.n_layers == 2
    (home / "nlpl-210.zip").unlink()
    random_official(n_layers=1).write(home / "nlpl-210")
    assert torchelmo.load("nlpl:210").config.n_layers == 1


@pytest.mark.parametrize("inside", [True, False])
def test_official_files_that_were_downloaded(inside, home):
    """In a folder with the name of the model, or beside other files."""
    folder = home / "elmo-original" if inside else home
    options, weights = random_official().write(folder)
    options.rename(folder / f"{ORIGINAL}_options.json")
    weights.rename(folder / f"{ORIGINAL}_weights.hdf5")
    if not inside:
        (home / "elmo_pt_options.json").write_text("{}")
        (home / "elmo_pt_weights.hdf5").write_text("x")
    assert torchelmo.load("elmo-original").config.n_layers == 2


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("nlpl:210", ["http://vectors.nlpl.eu/repository/20/210.zip", "home/210.zip"]),
        ("nlpl:999", ["http://vectors.nlpl.eu/repository/20/999.zip", "home/999.zip"]),
        ("elmo-original", [f"2x4096_512_2048cnn_2xhighway/{ORIGINAL}_weights.hdf5", "home/elmo-original"]),
        ("deeppavlov-ru", ["not known", "home/deeppavlov-ru"]),
        ("german-elmo", ["german-elmo-model", "home/german-elmo"]),
    ],
)
def test_where_to_get_it_and_where_to_put_it(name, facts):
    with pytest.raises(MissingFileError, match=mentions(name, "TORCHELMO_HOME", *facts)):
        torchelmo.load(name)


def test_an_unknown_name():
    with pytest.raises(MissingFileError, match=mentions("nonsense", "english-small", "torchelmo models")):
        torchelmo.load("nonsense")


def test_the_default_home(monkeypatch):
    monkeypatch.delenv("TORCHELMO_HOME")
    assert registry.model_home() == Path.home() / ".cache" / "torchelmo"


def test_the_checksum(home):
    (home / "1.zip").write_bytes(b"content")
    right = content_hash(home / "1.zip")
    model = PublishedModel("nlpl:1", addresses=("http://x/1.zip",), sha256=right)
    assert find_download(model) == home / "1.zip"
    (home / "1.zip").write_bytes(b"other")
    with pytest.raises(WeightsError, match=mentions("1.zip", right)):
        find_download(model)


def test_a_series_needs_numbers(tmp_path):
    (tmp_path / "models.toml").write_text('[[model]]\nname = "x"\nlast = 3\n')
    with pytest.raises(ConfigError, match=mentions("models.toml", "x")):
        registry._read_registry(tmp_path / "models.toml")


def test_the_command(capsys):
    with pytest.raises(SystemExit):
        main(["models", "--lang", "no", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in found] == ["nlpl:210", "nlpl:211", "nlpl:217", "nlpl:218"]
    with pytest.raises(SystemExit):
        main(["models"])
    printed = capsys.readouterr().out
    assert "english-small" in printed
    assert "http://vectors.nlpl.eu/repository/20/210.zip" in printed
    with pytest.raises(SystemExit):
        main(["models", "--lang", "en", "--json"])
    assert json.loads(capsys.readouterr().out)[0]["name"] == "english-small"
    with pytest.raises(SystemExit):
        main(["models", "--lang", "tlh"])
    assert "tlh" in capsys.readouterr().out


def test_the_list_does_not_wait_for_torch():
    code = (
        "import sys; from torchelmo.formats.registry import published_models; published_models(); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
