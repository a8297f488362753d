"""HDF5 files with vectors: what other programs find in them, and how damage is found."""

import json
import random
import sys

import h5py
import numpy as np
import pytest
from facts import mentions

from torchelmo import Elmo
from torchelmo.bulk import VectorFile, embed_file, hdf5
from torchelmo.errors import InputError, OutputError

LINES = ["I took a bow. It was fine.", "", "Zürich and 東京 are far.", "one"]


@pytest.fixture
def elmo(tiny_bilm):
    return Elmo(tiny_bilm)


@pytest.fixture
def out(tmp_path, elmo):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(LINES), encoding="utf-8")
    embed_file(text, tmp_path / "out.h5", model=elmo)
    return tmp_path / "out.h5"


def read_all(path):
    with VectorFile(path) as file:
        lines = range(len(file))
        return file.settings, file.ids, [file.tokens(i) for i in lines], [file[i].tolist() for i in lines]


def test_other_programs_find_vectors_tokens_and_settings(out, elmo):
    with h5py.File(out) as file:
        tokens = bytes(file["tokens/text"][:]).decode("utf-8").split("\n")
        boundaries = file["tokens/boundaries"][:]
        for number, (line, vectors) in enumerate(zip(LINES, elmo.embed(LINES), strict=True)):
            np.testing.assert_allclose(file[str(number)][:], vectors, rtol=1e-5, atol=1e-6)
            here = slice(boundaries[number], boundaries[number + 1])
            spans = zip(file["tokens/start"][here], file["tokens/end"][here], strict=True)
            assert [line[start:end] for start, end in spans] == tokens[here]
        assert json.loads(file["settings"][()])["layers"] == "all"
        assert json.loads(file["sentence_to_index"][0]) == {text: str(i) for i, text in enumerate(LINES) if text}


def test_all_types_are_fixed_and_nothing_is_in_a_heap(out):
    kinds = {}

    def visit(name, item):
        assert not item.attrs
        if isinstance(item, h5py.Dataset):
            kinds[name] = h5py.check_vlen_dtype(item.dtype) or h5py.check_ref_dtype(item.dtype)
            assert item.chunks is None

    with h5py.File(out) as file:
        visit("/", file)
        file.visititems(visit)
    assert len(kinds) == 10
    assert not any(kinds.values())
    assert b"GCOL" not in out.read_bytes()  # the signature of HDF5's heap for strings


def test_every_changed_byte_is_found_or_has_no_effect(out):
    content, expected, rng = out.read_bytes(), read_all(out), random.Random(0)
    refused = 0
    for place in [*range(len(content) - 400, len(content)), *rng.sample(range(len(content)), 200)]:
        out.write_bytes(content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :])
        try:
            found = read_all(out)
        except InputError as error:
            assert str(out) in str(error)  # noqa: PT017
            refused += 1
        else:
            assert found == expected
    assert refused >= 400  # everything at the end, and more


def test_vectors_can_be_changed_in_memory(out):
    with VectorFile(out) as file:
        file[0][:] = 0.0
        assert file[0].any()


def test_reading_does_not_use_the_hdf5_library(out, monkeypatch):
    expected = read_all(out)
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert read_all(out) == expected


def test_a_file_that_another_program_has_changed_is_refused(out):
    with h5py.File(out, "a") as file:
        file["mine"] = np.zeros(3)
    with pytest.raises(InputError, match=mentions(out, "another program")):
        VectorFile(out)


@pytest.mark.parametrize("format", [1, 3, None])
def test_another_format_is_refused(out, monkeypatch, format):
    monkeypatch.setattr(hdf5, "_FORMAT", format)
    with pytest.raises(InputError, match=mentions(out, "format", "2")):
        VectorFile(out)


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("function", ["_append", "_make_index"])
def test_a_run_that_breaks_off_in_its_index_is_resumed(tmp_path, elmo, monkeypatch, ids, function):
    text, options = tmp_path / "text.tsv", {"model": elmo, "id_column": "id" if ids else None}
    text.write_text("id\ttext\n" + "".join(f"{i}\tline {i}\n" for i in range(5)))
    embed_file(text, tmp_path / "whole.h5", **options)
    owner = hdf5 if function == "_append" else hdf5.Hdf5Output
    original = getattr(owner, function)

    def interrupt(*arguments):
        original(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, interrupt)
        with pytest.raises(KeyboardInterrupt):
            embed_file(text, tmp_path / "out.h5", **options)
    assert not (tmp_path / "out.h5").exists()
    embed_file(text, tmp_path / "out.h5", resume=True, **options)
    assert (tmp_path / "out.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_a_superblock_of_another_kind_is_not_trusted(tmp_path, elmo, monkeypatch):
    monkeypatch.setattr(hdf5, "_END_OF_FILE", 8)
    (tmp_path / "text.txt").write_text("a\n")
    with pytest.raises(OutputError, match="HDF5"):
        embed_file(tmp_path / "text.txt", tmp_path / "out.h5", model=elmo)
    assert not (tmp_path / "out.h5").exists()
