"""Models on the Hugging Face hub, without a network: a cache made by hand, and uploads that fail."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from facts import mentions
from official_files import random_official
from tiny_runs import run_to_end, tiny_config, write_data

import torchelmo
from torchelmo import BiLM
from torchelmo.errors import ConfigError, MissingFileError, MissingPackageError, OutputError
from torchelmo.formats.hub import model_card
from torchelmo.formats.load import is_hub_id

pytest.importorskip("huggingface_hub")
MAIN, OTHER = "a" * 40, "b" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of huggingface_hub: refs name a commit, and snapshots hold its files."""
    import huggingface_hub.constants as constants

    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    repository = folder / "models--owner--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(MAIN)
    (repository / "refs" / "v2").write_text(OTHER)
    # Files are links to blobs, named by their content.
    for commit, n_layers in ((MAIN, 2), (OTHER, 1)):
        random_official(n_layers=n_layers).write(repository / "snapshots" / commit)
        for path in sorted((repository / "snapshots" / commit).iterdir()):
            blob = repository / "blobs" / f"{commit}-{path.name}"
            blob.parent.mkdir(exist_ok=True)
            path.rename(blob)
            path.symlink_to(os.path.relpath(blob, path.parent))
    return folder


@pytest.mark.parametrize(
    ("name", "n_layers"),
    [
        ("owner/tiny", 2),
        ("owner/tiny@v2", 1),
        (f"owner/tiny@{OTHER}", 1),
        ("hf://owner/tiny", 2),
        (Path("hf://owner/tiny"), 2),
    ],
)
def test_load_by_id(name, n_layers):
    assert torchelmo.load(name).config.n_layers == n_layers


def test_from_pretrained(cache, tmp_path):
    assert BiLM.from_pretrained("owner/tiny", revision="v2", local_files_only=True).config.n_layers == 1
    elsewhere = cache.rename(tmp_path / "elsewhere")
    assert BiLM.from_pretrained("owner/tiny", cache_dir=elsewhere).config.n_layers == 2
    BiLM.from_pretrained("owner/tiny", cache_dir=elsewhere).save("owner/tiny")
    assert BiLM.from_pretrained("owner/tiny").source == "owner/tiny"  # a folder comes first


@pytest.mark.parametrize("name", ["owner/absent", "owner/tiny@v3", "hf://owner/absent"])
def test_a_model_that_is_not_there(name):
    with pytest.raises(MissingFileError, match=mentions(name, "hf download owner/")):
        torchelmo.load(name)


def test_a_path_is_not_an_id(tmp_path):
    (tmp_path / "runs").mkdir()
    for name in ("runs/mine", "./runs/mine", "a/b/c", "/a/b", "../a", "a", "hf://a"):
        assert not is_hub_id(name), name
    with pytest.raises(MissingFileError, match=mentions("runs/mine", "no such folder")) as caught:
        torchelmo.load("runs/mine")
    assert "hf" not in str(caught.value)


def test_without_the_package(monkeypatch, tiny_bilm):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingFileError, match=mentions("owner/tiny", "torchelmo[hub]", "hf download owner/tiny")):
        torchelmo.load("owner/tiny")
    with pytest.raises(MissingPackageError, match=mentions("torchelmo[hub]")):
        tiny_bilm.push_to_hub("owner/new")


def test_importing_torchelmo_does_not_import_the_package():
    code = "import sys, torchelmo; torchelmo.load(); sys.exit('huggingface_hub' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_save_pretrained(tiny_bilm, tmp_path):
    tiny_bilm = copy.deepcopy(tiny_bilm)
    tiny_bilm.lang = "is"
    assert tiny_bilm.save_pretrained(tmp_path / "saved", model_card_kwargs={"license": "cc0-1.0"}) is None
    assert torchelmo.load(tmp_path / "saved").fingerprint() == tiny_bilm.fingerprint()
    front = read_front(tmp_path / "saved" / "README.md")
    assert front == {
        "library_name": "torchelmo",
        "pipeline_tag": "feature-extraction",
        "tags": ["elmo", "bilm"],
        "language": "is",
        "license": "cc0-1.0",
    }
    (tmp_path / "saved" / "README.md").write_text("mine")
    tiny_bilm.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "README.md").read_text() == "mine"


def read_front(path: Path) -> dict[str, object]:
    """Each line of the front matter is a key and JSON, which is YAML, too."""
    _, front, _ = path.read_text(encoding="utf-8").split("---\n", 2)
    return {key: json.loads(value) for key, _, value in (line.partition(": ") for line in front.splitlines())}


def test_the_card_of_a_run(tmp_path):
    """Data, settings and learning curve are those of the run in the folder of the model."""
    data = write_data(tmp_path / "data")
    run_to_end(tiny_config(data, tmp_path / "run", steps=6, evaluate_every=2))
    for folder in ("run", "run/best"):
        card = model_card(torchelmo.load(tmp_path / folder), datasets=["owner/text"], tags=["x"])
        for fact in ("## Data", "| train | 400 |", "## Training", '"batch_size": 4', "## Held-out perplexity", "| 6 |"):
            assert fact in card
        assert str(tmp_path) not in card.replace(torchelmo.load(tmp_path / folder).origin, "")
    with pytest.raises(ConfigError, match=mentions("licensed", "license")):
        model_card(torchelmo.load(tmp_path / "run"), licensed="x")


def test_an_upload_that_fails(tiny_bilm, tmp_path):
    with pytest.raises(OutputError, match=mentions("owner/new", "hf auth")):
        tiny_bilm.push_to_hub("owner/new", token="hf_none")
    with pytest.raises(OutputError, match=mentions("owner/new")):
        tiny_bilm.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id="owner/new", private=True)
    assert torchelmo.load(tmp_path / "saved").fingerprint() == tiny_bilm.fingerprint()
