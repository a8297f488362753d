"""torchelmo embed: the content of the file."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from facts import mentions
from official_files import WORDS, random_official

import torchelmo
from torchelmo import Elmo
from torchelmo.bulk import VectorFile, embed_file, hdf5
from torchelmo.errors import InputError, WrongCallError

from .conftest import LINES

TOKENS = [line.split() for line in LINES]


def read(path: Path) -> list[np.ndarray]:
    """The arrays of a file by the number of their line, read with the format's own library."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files if name.isdecimal()}
            assert set(file.files) - set(arrays) == {"tokens", "start", "end", "boundaries", "settings"}
    else:
        with h5py.File(path) as file:
            arrays = {name: file[name][()] for name in file if name.isdecimal()}
            assert set(file) - set(arrays) <= {"settings", "tokens", "sentence_to_index"}
    assert set(arrays) == {str(number) for number in range(len(arrays))}
    return [arrays[str(number)] for number in range(len(arrays))]


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float = 1e-6) -> None:
    assert [array.shape for array in found] == [array.shape for array in expected]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("suffix", [".h5", ".hdf5", ".npz"])
@pytest.mark.parametrize("layers", ["all", "top", "average", "sum", "concat", "0", "2"])
def test_every_line_becomes_an_array(call, model, text, tmp_path, tiny_bilm, suffix, layers):
    out = tmp_path / f"out{suffix}"
    result = call("embed", text, "--pretokenized", "--out", out, "--model", model, "--layers", layers)
    assert result.code == 0, result.err
    assert re.fullmatch(mentions(out, "8 lines") + r"[^\n]*\n", result.out)
    choice = int(layers) if layers.isdecimal() else layers
    expected = Elmo(tiny_bilm).embed(TOKENS, "all" if layers in ("sum", "concat") else choice)
    if layers == "sum":
        expected = [array.sum(axis=0) for array in expected]
    if layers == "concat":
        expected = [np.concatenate(list(array), axis=-1) for array in expected]
    assert expected[2].size == 0  # the blank line keeps its number
    assert_equal(read(out), expected)
    assert all(array.dtype == np.float32 for array in read(out))
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == [out.name]


def test_hdf5_has_the_established_layout(call, model, text, tmp_path):
    out = tmp_path / "out.h5"
    assert call("embed", text, "--pretokenized", "--out", out, "--model", model).code == 0
    with h5py.File(out) as file:
        assert file["0"].shape == (3, 4, 16)
        assert file["2"].shape == (3, 0, 16)
        assert file["sentence_to_index"].shape == (1,)
        index = json.loads(file["sentence_to_index"][0])
    first = {text: str(number) for number, text in reversed(list(enumerate(LINES))) if text.strip()}
    assert index == first
    assert index["bow and arrow"] == "1"


def test_a_text_too_long_for_one_json_object_has_no_sentence_index(call, model, text, tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "MAX_SENTENCE_CHARACTERS", 20)
    out = tmp_path / "out.h5"
    result = call("embed", text, "--pretokenized", "--out", out, "--model", model)
    assert result.code == 0
    assert "sentence_to_index" in result.err
    with h5py.File(out) as file:
        assert sorted(file) == [*(str(number) for number in range(8)), "settings", "tokens"]


@pytest.mark.parametrize("layers", ["all", "top"])
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_pooling_gives_one_vector_per_line(call, model, text, tmp_path, tiny_bilm, pool, layers):
    out = tmp_path / "out.npz"
    assert (
        call("embed", text, "--pretokenized", "--out", out, "--model", model, "--pool", pool, "--layers", layers).code
        == 0
    )
    expected = [
        getattr(np, pool)(array, axis=-2) if array.size else np.zeros((*array.shape[:-2], 16))
        for array in Elmo(tiny_bilm).embed(TOKENS, layers)
    ]
    assert_equal(read(out), expected)


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_half_precision_files(call, model, text, tmp_path, tiny_bilm, suffix):
    out = tmp_path / f"out{suffix}"
    assert call("embed", text, "--pretokenized", "--out", out, "--model", model, "--dtype", "float16").code == 0
    assert all(array.dtype == np.float16 for array in read(out))
    assert_equal(read(out), Elmo(tiny_bilm).embed(TOKENS), tolerance=1e-3)


def test_raw_text_is_split_by_the_rules_of_a_language(call, model, tmp_path, tiny_bilm):
    lines = ["It's mine, isn't it? Yes.", "", "Don't go!"]
    source, out = tmp_path / "raw.txt", tmp_path / "out.npz"
    source.write_text("\n".join(lines), encoding="utf-8")
    assert call("embed", source, "--out", out, "--model", model).code == 0
    assert_equal(read(out), Elmo(tiny_bilm).embed(lines, lang="en"))
    assert read(out)[2].shape == (3, 4, 16)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_packed_text(call, model, text, tmp_path, tiny_bilm, suffix, pack):
    packed, out = tmp_path / f"text.txt{suffix}", tmp_path / "out.npz"
    packed.write_bytes(pack(text.read_bytes()))
    assert call("embed", packed, "--pretokenized", "--out", out, "--model", model).code == 0
    assert_equal(read(out), Elmo(tiny_bilm).embed(TOKENS))


def test_standard_input(call, model, text, tmp_path, tiny_bilm, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.read_bytes())))
    assert call("embed", "-", "--pretokenized", "--out", tmp_path / "out.npz", "--model", model).code == 0
    assert_equal(read(tmp_path / "out.npz"), Elmo(tiny_bilm).embed(TOKENS))


def test_a_named_pipe_is_read_once(call, model, text, tmp_path, tiny_bilm):
    pipe, out = tmp_path / "pipe", tmp_path / "out.npz"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(text.read_bytes()), daemon=True)
    writer.start()
    assert call("embed", pipe, "--pretokenized", "--out", out, "--model", model).code == 0
    assert_equal(read(out), Elmo(tiny_bilm).embed(TOKENS))


def test_carried_state_runs_through_the_text(call, model, text, tmp_path, tiny_bilm):
    out = tmp_path / "out.npz"
    assert call("embed", text, "--pretokenized", "--out", out, "--model", model, "--state", "carry").code == 0
    expected = Elmo(tiny_bilm).embed(TOKENS, state="carry")
    assert_equal(read(out), expected)
    reset = Elmo(tiny_bilm).embed(TOKENS)
    assert np.abs(expected[1] - reset[1]).max() > 1e-4


def test_a_model_that_reads_words(call, text, tmp_path):
    folder, out = tmp_path / "words", tmp_path / "out.npz"
    random_official(words=len(WORDS)).write(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    assert call("embed", text, "--pretokenized", "--out", out, "--model", folder).code == 0
    assert_equal(read(out), Elmo(torchelmo.load(folder)).embed(TOKENS))


def test_the_folder_of_the_output_is_made(call, model, text, tmp_path):
    out = tmp_path / "new" / "folder" / "out.h5"
    assert call("embed", text, "--pretokenized", "--out", out, "--model", model).code == 0
    assert os.listdir(out.parent) == ["out.h5"]


def test_overwrite_replaces_a_file_only_when_the_new_one_is_whole(call, model, text, tmp_path):
    out, bad = tmp_path / "out.npz", tmp_path / "bad.txt"
    out.write_bytes(b"older")
    bad.write_bytes(b"fine\n\xff\n")
    assert call("embed", bad, "--pretokenized", "--out", out, "--model", model, "--overwrite").code == 1
    assert out.read_bytes() == b"older"
    assert call("embed", text, "--pretokenized", "--out", out, "--model", model, "--overwrite").code == 0
    assert len(read(out)) == 8


def test_equal_calls_write_equal_bytes(call, model, text, tmp_path):
    for suffix in (".h5", ".npz"):
        for name in ("one", "two"):
            time.sleep(1.1)  # file formats that hold a time of writing hold it in seconds
            assert (
                call("embed", text, "--pretokenized", "--out", tmp_path / f"{name}{suffix}", "--model", model).code == 0
            )
        one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
        assert one.read_bytes() == two.read_bytes()


def test_progress_lines_go_to_standard_error(call, model, text, tmp_path):
    result = call("embed", text, "--pretokenized", "--out", tmp_path / "out.npz", "--model", model)
    assert re.search(mentions("embed", "8 lines"), result.err)
    assert result.out.count("\n") == 1


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_the_file_holds_tokens_offsets_and_settings(call, model, tmp_path, suffix):
    lines = ["It's  mine, isn't it? Yes.", "", "Don't go to 東京!"]
    source, out = tmp_path / "raw.txt", tmp_path / f"out{suffix}"
    source.write_text("\n".join(lines), encoding="utf-8")
    assert call("embed", source, "--out", out, "--model", model, "--layers", "top").code == 0
    with VectorFile(out) as file:
        assert len(file) == 3
        assert [token.text for token in file.tokens(0)][:6] == ["It", "'s", "mine", ",", "is", "n't"]
        assert file.tokens(1) == []
        for line, vectors in enumerate(file):
            tokens = file.tokens(line)
            assert len(tokens) == len(vectors)
            assert [lines[line][start:end] for _, start, end in tokens] == [token.text for token in tokens]
        settings = file.settings
    assert (settings["model"], settings["layers"], settings["lang"]) == (str(model), "top", "en")
    with pytest.raises(InputError), VectorFile(source):
        pass


def test_the_library_function_returns_what_it_wrote(tiny_bilm, text, tmp_path):
    result = embed_file(text, tmp_path / "out.h5", model=Elmo(tiny_bilm), pretokenized=True, pool="mean")
    assert (result.n_lines, result.n_tokens, result.shape, result.already_complete) == (8, 24, (3, 16), False)
    with pytest.raises(WrongCallError, match="both"):
        embed_file(text, tmp_path / "out.h5", model=Elmo(tiny_bilm), resume=True, overwrite=True)


def test_a_column_names_the_arrays(call, model, tmp_path, tiny_bilm):
    table, out = tmp_path / "t.csv", tmp_path / "out.npz"
    table.write_text('key,body\na,"bow, arrow"\nb,one\n', encoding="utf-8")
    flags = ("--text-column", "body", "--id-column", "key", "--layers", "top")
    assert call("embed", table, *flags, "--out", out, "--model", model).code == 0
    expected = Elmo(tiny_bilm).embed(["bow, arrow", "one"], "top")
    with np.load(out) as file:
        assert_equal([file["a"], file["b"]], expected)


def test_standard_input_may_be_a_fasta_file(call, model, tmp_path, tiny_bilm, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b">p one\nMAL\n>q\nX\n")))
    out = tmp_path / "out.npz"
    assert call("embed", "-", "--format", "fasta", "--layers", "sum", "--out", out, "--model", model).code == 0
    with np.load(out) as file:
        assert_equal([file["p"], file["q"]], Elmo(tiny_bilm).embed([list("MAL"), ["X"]], "sum"))


def test_equal_ids_of_a_stream_are_refused_before_any_vector(call, model, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b">p\nMAL\n>p\nX\n")))
    result = call("embed", "-", "--format", "fasta", "--out", tmp_path / "out.npz", "--model", model)
    assert result.code == 1
    assert re.search(mentions("standard input", "lines 1 and 3", "--id-column"), result.err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "flags", "code", "facts"),
    [
        ("t.csv", [], 1, ["t.csv", "'text'", "'body'", "--text-column"]),
        ("t.csv", ["--text-column", "body", "--id-column", "no"], 1, ["t.csv", "'no'", "'key'", "--id-column"]),
        ("t.txt", ["--id-column", "key"], 2, ["--id-column", "--format"]),
        ("t.txt", ["--format", "xml"], 2, ["--format", "xml", "fasta"]),
    ],
)
def test_wrong_columns_are_named_by_their_flags(call, model, tmp_path, name, flags, code, facts):
    (tmp_path / name).write_text("key,body\na,b\n", encoding="utf-8")
    result = call("embed", tmp_path / name, *flags, "--out", tmp_path / "out.h5", "--model", model)
    assert (result.code, list(tmp_path.glob("out*"))) == (code, [])
    assert re.search(mentions(*facts), result.err)


def test_a_folder_is_written_shard_by_shard(call, model, text, tmp_path):
    out = tmp_path / "vectors"
    options = ("--out", f"{out}/", "--model", model, "--layers", "top", "--shard-size", "30")
    result = call("embed", text, text.parent / "te*.txt", *options, "--shard", "1/2")
    assert result.code == 0, result.err
    assert re.fullmatch(mentions(out, " of ", "shards") + r"[^\n]*\n", result.out)
    status = call("embed", "--status", out)
    assert status.code == 0
    assert re.search(mentions(out, "not complete", "left"), status.out)
    result = call("embed", text, *options, "--out-format", "parquet")
    assert result.code == 0, result.err
    assert re.search(mentions(out, "3 shards", "8 rows"), result.out)
    assert re.search(mentions("8 of 8 rows", "complete"), call("embed", "--status", out).out)
    assert re.search(mentions("already complete"), call("embed", text, *options).err)
    with torchelmo.bulk.open(out) as collection:
        assert [len(vectors) for vectors in collection] == [len(line.split()) for line in LINES]


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (("--out", "x.h5", "--workers", "2"), ("x.h5", "x/", "--workers")),
        (("--out", "x/", "--shard", "3/2"), ("3/2",)),
        (("--out", "x/", "--shard", "one"), ("one", "I/N")),
        (("--out", "x/", "--shard-size", "big"), ("big",)),
        (("--out", "x/", "--state", "carry"), ("carry",)),
        (("--out", "x/", "--resume", "--overwrite"), ("--resume", "--overwrite")),
    ],
)
def test_wrong_options_for_collections(call, model, text, tmp_path, monkeypatch, options, facts):
    monkeypatch.chdir(tmp_path)
    result = call("embed", text, "--model", model, *options)
    assert result.code == 2
    assert re.search(mentions(*facts), result.err)
    assert not (tmp_path / "x").exists()
    assert call("embed", "--status", tmp_path).code == 2
