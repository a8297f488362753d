"""Archives with models, and archives that are refused."""

import gzip
import io
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from facts import mentions
from official_files import WORDS, random_official

import torchelmo
from torchelmo.errors import ConfigError, MissingFileError, TorchelmoError, WeightsError
from torchelmo.formats import archives
from torchelmo.formats.convert import convert, describe

FIXTURES = Path(__file__).parent.parent / "fixtures"
KINDS = {"zip": "zip", "tar": "tar", "gztar": "tar.gz", "xztar": "tar.xz"}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives are unpacked; it must be empty in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def official_folder(tmp_path: Path) -> Path:
    """An archive of NLPL, unpacked."""
    folder = tmp_path / "nlpl"
    _, weights = random_official().write(folder)
    weights.rename(folder / "model.hdf5")
    (folder / "vocab.txt.gz").write_bytes(gzip.compress(("\n".join(WORDS) + "\n").encode()))
    (folder / "meta.json").write_text('{"name":\n "trained on lemmas"}')
    (folder / "README").write_text("A model.")
    return folder


def same(one: torchelmo.BiLM, other: torchelmo.BiLM) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top", [True, False])
def test_official_files(kind, top, official_folder, tmp_path, temporary):
    """At the top of the archive, or in a folder."""
    root = official_folder if top else official_folder.parent
    file = shutil.make_archive(str(tmp_path / "210"), kind, root, "." if top else official_folder.name)
    assert file.endswith(KINDS[kind])
    bilm = torchelmo.load(file)
    assert same(bilm, torchelmo.load(official_folder))
    assert list(bilm.vocabulary) == WORDS
    assert Path(file).name in bilm.origin
    assert bilm.source == file
    assert not list(temporary.iterdir())


def test_a_model_folder(tiny_bilm, tmp_path):
    tiny_bilm.save(tmp_path / "tiny")
    file = shutil.make_archive(str(tmp_path / "tiny"), "gztar", tmp_path, "tiny")
    assert same(torchelmo.load(file), tiny_bilm)


def test_a_checkpoint(tmp_path):
    file = shutil.make_archive(str(tmp_path / "checkpoint"), "gztar", FIXTURES, "tf_checkpoint_chars")
    assert torchelmo.load(file).config.softmax_words == 8


def test_convert_and_info(official_folder, tmp_path):
    file = shutil.make_archive(str(tmp_path / "210"), "zip", official_folder)
    convert(file, tmp_path / "converted")
    assert same(torchelmo.load(tmp_path / "converted"), torchelmo.load(official_folder))
    about = describe(file)
    assert about["files"] == {"210.zip": Path(file).stat().st_size}
    assert about["description"] == '{"name": "trained on lemmas"}'


def test_a_name_without_suffix(official_folder, tmp_path):
    file = Path(shutil.make_archive(str(tmp_path / "x"), "zip", official_folder))
    assert torchelmo.load(file.rename(tmp_path / "download")).config.n_layers == 2


def test_an_error_names_the_archive(official_folder, tmp_path, temporary):
    (official_folder / "options.json").write_text("{}")
    file = shutil.make_archive(str(tmp_path / "210"), "zip", official_folder)
    with pytest.raises(ConfigError, match=mentions("210.zip/options.json", "'lstm'")) as caught:
        torchelmo.load(file)
    assert str(temporary) not in str(caught.value)


def test_no_model_and_two_models(official_folder, tmp_path):
    file = zip_of(tmp_path / "none.zip", {"README.txt": b"nothing"})
    with pytest.raises(MissingFileError, match=mentions("none.zip", "options.json")):
        torchelmo.load(file)
    files = {f"{name}/{path.name}": path.read_bytes() for name in "ab" for path in official_folder.iterdir()}
    with pytest.raises(MissingFileError, match=mentions("two.zip", "a, b")):
        torchelmo.load(zip_of(tmp_path / "two.zip", files))


# Refused


def zip_of(path: Path, files: dict[str, bytes], *, mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = mode << 16
            archive.writestr(member, content)
    return path


def tar_of(path: Path, name: str, change: Callable[[tarfile.TarInfo], object] = lambda member: None) -> Path:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo(name)
        member.size = 2
        change(member)
        archive.addfile(member, io.BytesIO(b"{}") if member.isreg() else None)
    return path


NAMES = ["../options.json", "a/../../options.json", "/etc/options.json", "a\\..\\options.json", "C:options.json"]


@pytest.mark.parametrize("name", [*NAMES, "/".join("abcdefghij") + "/options.json"])
def test_paths_that_leave_the_folder(name, tmp_path, temporary):
    for file in (zip_of(tmp_path / "x.zip", {name: b"{}"}), tar_of(tmp_path / "x.tar", name)):
        with pytest.raises(WeightsError, match=mentions(file.name, "options.json")):
            torchelmo.load(file)
    assert {path.name for path in tmp_path.iterdir()} == {"temporary", "x.zip", "x.tar"}
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices(kind, tmp_path):
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname, member.size = kind, "/etc/hostname", 0

    with pytest.raises(WeightsError, match=mentions("x.tar", "options.json", "link")):
        torchelmo.load(tar_of(tmp_path / "x.tar", "options.json", change))
    with pytest.raises(WeightsError, match=mentions("x.zip", "options.json", "link")):
        torchelmo.load(zip_of(tmp_path / "x.zip", {"options.json": b"/etc/hostname"}, mode=0o120777))


def test_bombs(tmp_path, monkeypatch, temporary):
    monkeypatch.setattr(archives, "FREE_BYTES", 2**20)
    content = bytes(2**24)
    with pytest.raises(WeightsError, match=mentions("bomb.zip", "unpack it by hand")):
        torchelmo.load(zip_of(tmp_path / "bomb.zip", {"weights.hdf5": content}))
    # A member that is not unpacked counts as well if it must be decompressed.
    for name in ("weights.hdf5", "other.bin"):
        file = tmp_path / "bomb.tar.gz"
        with tarfile.open(file, "w:gz") as archive:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        with pytest.raises(WeightsError, match=mentions("bomb.tar.gz", "unpack it by hand")):
            torchelmo.load(file)
    assert not list(temporary.iterdir())


def test_many_members(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 10)
    with pytest.raises(WeightsError, match=mentions("many.zip", 10)):
        torchelmo.load(zip_of(tmp_path / "many.zip", {f"{i}.txt": b"" for i in range(11)}))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice(tmp_path):
    file = tmp_path / "twice.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("options.json", "{}")
        archive.writestr("options.json", "[]")
    with pytest.raises(TorchelmoError, match=mentions("options.json")):
        torchelmo.load(file)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x1f\x8b\x08", b"text", bytes(10_000)])
@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz"])
def test_something_else(content, name, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((WeightsError, MissingFileError), match=mentions(name)):
        torchelmo.load(tmp_path / name)


def test_an_error_page(tmp_path):
    (tmp_path / "210.zip").write_text("<html>404</html>")
    with pytest.raises(WeightsError, match=mentions("210.zip", "HTML")):
        torchelmo.load(tmp_path / "210.zip")


@pytest.mark.parametrize("name", ["model.ckpt-3.index", "210.zip.part"])
def test_another_file(name, tmp_path):
    (tmp_path / name).write_bytes(b"something")
    facts = ("not finished",) if name.endswith("part") else ("folder", ".zip")
    with pytest.raises(MissingFileError, match=mentions(name, *facts)):
        torchelmo.load(tmp_path / name)


@pytest.mark.parametrize("kind", ["zip", "tar", "gztar"])
def test_mutations_give_our_errors_only(kind, tmp_path, temporary):
    """Nothing is written outside of the temporary folder, which is empty in the end."""
    folder = tmp_path / "small"
    random_official(filters=((1, 2),), projection_dim=2, cell_dim=2, n_layers=1, char_dim=1).write(folder)
    file = Path(shutil.make_archive(str(tmp_path / "mutated"), kind, folder))
    original = file.read_bytes()
    rng = np.random.default_rng(4)
    failures = 0
    for _ in range(100):
        data = bytearray(original)
        if rng.random() < 0.2:
            data = data[: rng.integers(len(data))]
        edge = len(data) - min(len(data), 300) if rng.random() < 0.5 else 0  # the directory of a zip is at its end
        for place in rng.integers(edge, max(len(data), edge + 1), rng.integers(1, 20)):
            if place < len(data):
                data[place] = rng.integers(256)
        file.write_bytes(bytes(data))
        try:
            torchelmo.load(file)
        except TorchelmoError:
            failures += 1
    assert failures > 30
    assert {path.name for path in tmp_path.iterdir()} == {"small", "temporary", file.name}
    assert not list(temporary.iterdir())
