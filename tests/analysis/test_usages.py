"""Usages of target words: targets, texts, DWUG files, samples, outputs, resuming."""

import json
import os

import numpy as np
import pytest
from facts import mentions
from tiny_lm import tiny_lm

from torchelmo import Elmo, embedder
from torchelmo.analysis import usages as module
from torchelmo.analysis.usage_files import UsageFile
from torchelmo.analysis.usages import collect_usages, read_targets, read_usages
from torchelmo.embedder import Embedder
from torchelmo.errors import ConfigError, InputError, OutputError, OutputExistsError, WrongCallError

LINES = [
    "The bow and the arrow. A bow!",
    "",
    "He bows to the rose; the roses bow.",
    "Nothing to see here.",
    "Bow down.",
]
TARGETS = {"bow": "bow", "bows": "bow", "rose": "rose", "quiver": "quiver"}
DWUG = [
    "lemma pos date grouping identifier description context indexes_target_token indexes_target_sentence".split(),
    ["plane_nn", "NN", "1850", "1", "id-1", "", 'A "plane" surface. It is flat.', "3:8", "0:18"],
    ["plane_nn", "NN", "1990", "2", "id-2", "", "I sat. The planes' wings shone.", "11:18", "7:31"],
    ["tree_nn", "NN", "1850", "1", "id-3", "", "A tree.", "2:6", "0:7"],
]


@pytest.fixture(scope="module")
def elmo():
    return Elmo(tiny_lm()).eval()


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def dwug(tmp_path):
    path = tmp_path / "uses.csv"
    path.write_text("".join("\t".join(row) + "\n" for row in DWUG), encoding="utf-8")
    return path


def expected(elmo, layers=2):
    """The vectors of the targets in the text, sentence by sentence."""
    found = {"bow": [], "rose": [], "quiver": []}
    sentences = [sentence for line in LINES for sentence in module._split(line, "en")]
    for sentence in sentences:
        tokens = [token.text for token in sentence]
        vectors = elmo.embed([tokens], layers)[0]
        for token, vector in zip(tokens, vectors):
            if token in TARGETS:
                found[TARGETS[token]].append(vector)
    return found


def test_the_archive_has_an_array_for_each_word(elmo, text, tmp_path):
    """As `extract_elmo.py` of ltgoslo writes it: read by `np.load`, key = word, value (n, dim)."""
    out = tmp_path / "usages.npz"
    result = collect_usages(elmo, [str(text)], TARGETS, out)
    assert result.counts == {"bow": 4, "rose": 1, "quiver": 0}
    assert result.dim == 12
    with np.load(out) as found:
        assert set(found.files) == {"bow", "rose", "quiver"}
        for word, vectors in expected(elmo).items():
            assert found[word].shape == (len(vectors), 12)
            if vectors:
                assert found[word] == pytest.approx(np.stack(vectors), abs=1e-5)
    assert not (tmp_path / "usages.npz.partial").exists()


@pytest.mark.parametrize(("layers", "dim"), [("average", 12), ("concat", 36), (0, 12)])
def test_layers(elmo, text, tmp_path, layers, dim):
    collect_usages(elmo, [str(text)], TARGETS, tmp_path / "u.npz", layers=layers)
    with UsageFile(tmp_path / "u.npz") as usages:
        assert usages.dim == dim
        assert usages["rose"] == pytest.approx(np.stack(expected(elmo, layers)["rose"]), abs=1e-5)


def test_parquet_has_the_sentences(elmo, text, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "usages.parquet"
    collect_usages(elmo, [str(text)], TARGETS, out)
    rows = parquet.read_table(out).to_pylist()
    assert [row["word"] for row in rows] == ["bow", "bow", "bow", "rose", "bow"]
    for row in rows:
        assert row["sentence"][row["start"] : row["end"]] in TARGETS
    assert (rows[1]["sentence"], rows[1]["line"], rows[1]["position"]) == ("A bow!", 1, 1)
    assert rows[2]["sentence"] == LINES[2]
    with UsageFile(out) as usages:
        assert usages.words == ["bow", "rose"]
        assert usages.counts() == {"bow": 4, "rose": 1}
        assert usages["bow"] == pytest.approx(np.stack(expected(elmo)["bow"]), abs=1e-5)
        with pytest.raises(KeyError):
            usages["quiver"]


def test_dwug_uses_by_characters(elmo, dwug, tmp_path):
    found = list(read_usages([str(dwug)], None))
    words = [[sentence.tokens[i].text for i in usage.positions] for sentence in found for usage in sentence.usages]
    assert words == [["plane"], ["planes", "'"], ["tree"]]
    collect_usages(elmo, [str(dwug)], None, tmp_path / "one.npz", grouping="1")
    with UsageFile(tmp_path / "one.npz") as usages:
        assert usages.counts() == {"plane_nn": 1, "tree_nn": 1}
        [vectors] = elmo.embed([["A", '"', "plane", '"', "surface", "."]], "top")
        assert usages["plane_nn"][0] == pytest.approx(vectors[2], abs=1e-5)
    collect_usages(elmo, [str(dwug)], {"plane_nn": "plane_nn"}, tmp_path / "two.npz", grouping="2")
    with UsageFile(tmp_path / "two.npz") as usages:
        [vectors] = elmo.embed([["The", "planes", "'", "wings", "shone", "."]], "top")
        assert usages["plane_nn"][0] == pytest.approx(vectors[1:3].mean(0), abs=1e-5)


@pytest.mark.parametrize("span", ["3-8", "a:b", "90:91", "1:2:3"])
def test_damaged_spans_are_named(tmp_path, dwug, span):
    dwug.write_text(dwug.read_text(encoding="utf-8").replace("11:18", span), encoding="utf-8")
    with pytest.raises(InputError, match=mentions("uses.csv", "line 3", span)):
        list(read_usages([str(dwug)], None))


def test_case_and_tokenized_text(text):
    assert len(list(read_usages([str(text)], TARGETS, ignore_case=True))) == 4
    found = list(read_usages([str(text)], {"rose;": "rose"}, lang=None))
    assert [usage for sentence in found for usage in sentence.usages] == [("rose", [4], None)]
    with pytest.raises(WrongCallError, match=mentions("text.txt", "`targets`")):
        list(read_usages([str(text)], None))


def test_targets_with_forms(tmp_path):
    path = tmp_path / "targets.txt"
    path.write_text("bow,bows, bowed\nrose\n\n", encoding="utf-8")
    assert read_targets(path) == {"bow": "bow", "bows": "bow", "bowed": "bow", "rose": "rose"}
    path.write_text("bow,bows\nbows\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions("targets.txt", "line 2", "'bows'")):
        read_targets(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions("targets.txt")):
        read_targets(path)


def test_a_sample_is_a_part_of_all_usages(elmo, text, tmp_path):
    results = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        done = collect_usages(elmo, [str(text)], TARGETS, tmp_path / f"{name}.npz", max_usages=2, seed=seed)
        assert done.counts == {"bow": 2, "rose": 1, "quiver": 0}
        with UsageFile(tmp_path / f"{name}.npz") as usages:
            results.append(usages["bow"])
    assert np.array_equal(results[0], results[1])
    every = np.stack(expected(elmo)["bow"])
    for vector in results[2]:
        assert np.isclose(every, vector, atol=1e-5).all(1).any()


class StopError(Exception):
    pass


def interrupt(elmo, text, out, monkeypatch, *, after, **options):
    """Start a run that ends after some blocks of one sentence, each of which is committed."""
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.0)
    run, calls = Embedder.__call__, []

    def limited(*arguments):
        calls.append(1)
        if len(calls) > after:
            raise StopError
        return run(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "__call__", limited)
        with pytest.raises(StopError) as stop:
            collect_usages(elmo, [str(text)], TARGETS, out, **{"batch_tokens": 1, **options})
    return stop.value


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_an_interrupted_run_is_resumed(elmo, text, tmp_path, monkeypatch, suffix):
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    collect_usages(elmo, [str(text)], TARGETS, whole, batch_tokens=1)
    error = interrupt(elmo, text, out, monkeypatch, after=2)
    assert "resume=True" in error.__notes__[0]
    assert not out.exists()
    partial = tmp_path / f"out{suffix}.partial"
    with (partial / "vectors.bin").open("ab") as stream:  # what was written after the last commit
        stream.write(b"half a vector")
    with pytest.raises(OutputExistsError, match=mentions("resume=True")):
        collect_usages(elmo, [str(text)], TARGETS, out, batch_tokens=1)
    result = collect_usages(elmo, [str(text)], TARGETS, out, batch_tokens=1, resume=True)
    assert result.counts == {"bow": 4, "rose": 1, "quiver": 0}
    assert out.read_bytes() == whole.read_bytes()
    assert not partial.exists()
    again = collect_usages(elmo, [str(text)], TARGETS, out, batch_tokens=1, resume=True)
    assert again.already_complete
    with pytest.raises(WrongCallError, match=mentions("layers", "top", "average")):
        collect_usages(elmo, [str(text)], TARGETS, out, batch_tokens=1, layers="average", resume=True)


@pytest.mark.parametrize("blocks", [1, 3, 64])
def test_a_resumed_run_has_the_same_cache_of_token_vectors(text, tmp_path, monkeypatch, blocks):
    """The last digits of a token vector depend on the words that it is encoded with."""
    monkeypatch.setattr(embedder, "BLOCKS_PER_CACHE", blocks)
    elmo = Elmo(tiny_lm(), cache=7)
    text.write_text("\n".join(f"{line} {i} bow" for i, line in enumerate(LINES * 3)), encoding="utf-8")
    whole, out = tmp_path / "whole.npz", tmp_path / "out.npz"
    collect_usages(elmo, [str(text)], TARGETS, whole, batch_tokens=3)
    for after in (1, 3, 6):
        interrupt(elmo, text, out, monkeypatch, after=after, batch_tokens=3)
        elmo.embed([["words", "of", "another", "call"]])
        collect_usages(elmo, [str(text)], TARGETS, out, batch_tokens=3, resume=True)
        assert out.read_bytes() == whole.read_bytes()
        out.unlink()


def test_a_run_is_resumed_only_with_its_settings(elmo, text, tmp_path, monkeypatch):
    out = tmp_path / "out.npz"
    interrupt(elmo, text, out, monkeypatch, after=1)
    with pytest.raises(WrongCallError, match=mentions("layers", "average")):
        collect_usages(elmo, [str(text)], TARGETS, out, batch_tokens=1, layers="average", resume=True)
    text.write_text("Another bow.\n", encoding="utf-8")
    with pytest.raises(WrongCallError, match=mentions("text")):
        collect_usages(elmo, [str(text)], TARGETS, out, batch_tokens=1, resume=True)
    os.truncate(tmp_path / "out.npz.partial" / "vectors.bin", 3)
    text.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    with pytest.raises(OutputError, match=mentions("vectors.bin", "overwrite=True")):
        collect_usages(elmo, [str(text)], TARGETS, out, batch_tokens=1, resume=True)
    collect_usages(elmo, [str(text)], TARGETS, out, overwrite=True)
    assert out.exists()
    assert not (tmp_path / "out.npz.partial").exists()


def test_a_failed_start_leaves_nothing(elmo, text, tmp_path, monkeypatch):
    interrupt(elmo, text, tmp_path / "new" / "out.npz", monkeypatch, after=0)
    assert not (tmp_path / "new").exists()


def test_wrong_calls_are_named(elmo, text, tmp_path):
    def collect(out="out.npz", targets=TARGETS, **options):
        collect_usages(elmo, [str(text)], targets, tmp_path / out, **options)

    with pytest.raises(WrongCallError, match=mentions("out.txt", ".npz", ".parquet")):
        collect("out.txt")
    with pytest.raises(ConfigError, match=mentions("layers", "all")):
        collect(layers="all")
    with pytest.raises(ConfigError, match=mentions("layers", 7)):
        collect(layers=7)
    with pytest.raises(WrongCallError, match=mentions("resume=True", "overwrite=True")):
        collect(resume=True, overwrite=True)
    with pytest.raises(InputError, match=mentions("text.txt")):
        collect(targets={"quiver": "quiver"})
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(WrongCallError, match=mentions("folder.npz", "directory")):
        collect("folder.npz")
    (tmp_path / "other.npz.partial").mkdir()
    (tmp_path / "other.npz.partial" / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputExistsError, match=mentions("other.npz.partial")):
        collect("other.npz", overwrite=True)
    (tmp_path / "done.npz").write_bytes(b"")
    with pytest.raises(OutputExistsError, match=mentions("done.npz", "overwrite=True")):
        collect("done.npz")


def test_damaged_files_of_usages_are_named(tmp_path):
    path = tmp_path / "u.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(InputError, match=mentions("u.npz")):
        UsageFile(path)
    np.savez(path, bow=np.zeros(3), rose=np.zeros((2, 3)), tree=np.zeros((2, 4)))
    with UsageFile(path) as usages:
        assert usages.settings is None
        with pytest.raises(InputError, match=mentions("u.npz", "'bow'")):
            usages["bow"]
        usages["rose"]
        with pytest.raises(InputError, match=mentions("u.npz", "'tree'", 3, 4)):
            usages["tree"]
    pytest.importorskip("pyarrow")
    path = tmp_path / "u.parquet"
    path.write_bytes(b"no table")
    with pytest.raises(InputError, match=mentions("u.parquet")):
        UsageFile(path)


def test_the_settings_are_in_the_file(elmo, text, tmp_path):
    collect_usages(elmo, [str(text)], TARGETS, tmp_path / "u.npz")
    with UsageFile(tmp_path / "u.npz") as usages:
        assert usages.settings["layers"] == "top"
        assert json.dumps(usages.settings)
