"""Text files → a corpus folder: the same bytes whatever the compression, the blocks and the number of workers."""

import bz2
import errno
import gzip
import hashlib
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from facts import mentions

from torchelmo.errors import ConfigError, InputError, MissingFileError, OutputError, OutputExistsError, TorchelmoError
from torchelmo.files import hold_lock
from torchelmo.lm import preparation as blocks
from torchelmo.lm.corpus import Corpus
from torchelmo.lm.preparation import describe, prepare
from torchelmo.text.tokenize import Tokenizer
from torchelmo.text.vocabulary import Vocabulary

PARAGRAPHS = [
    "He took a bow. The bow and the arrow weren't his!",
    "",
    "  \t ",
    'She said: "Ærø is an island." Then (at last) she left.',
    "The rose, the bow.",
    "x" * 10_000 + " is long.",
]
TEXT = "".join(line + "\n" for line in PARAGRAPHS)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def lines(tmp_path):
    """500 sentences that are split already, and every one of them different."""
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {i} of w{i % 50} w{i % 7}\n" for i in range(500)), encoding="utf-8")
    return path


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def sentences(folder, part="train"):
    return list(Corpus(folder, part).sentences())


def test_raw_text_becomes_the_sentences_of_the_tokenizer(text, tmp_path):
    prepare([text], tmp_path / "data", heldout=0)
    expected = [sentence for line in PARAGRAPHS for sentence in Tokenizer("en").sentences(line)]
    assert sentences(tmp_path / "data") == expected
    assert len(expected) == 6


def test_pretokenized_text_is_taken_as_it_is(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("weren't it .  ?\r\n\n \nA.B.\tc", encoding="utf-8")
    prepare([path], tmp_path / "data", pretokenized=True, heldout=0)
    assert sentences(tmp_path / "data") == [["weren't", "it", ".", "?"], ["A.B.", "c"]]


def test_the_card_tells_sources_tokenizer_settings_and_coverage(text, tmp_path):
    card = prepare([text], tmp_path / "data", vocab_size=8, heldout=0, lang="de", seed=3)
    assert json.loads((tmp_path / "data" / "card.json").read_text(encoding="utf-8")) == card
    assert card["sources"] == [
        {"name": "text.txt", "part": "train", "lines": 6, "sha256_of_text": hashlib.sha256(TEXT.encode()).hexdigest()}
    ]
    assert card["tokenizer"]["lang"] == "de"
    assert card["tokenizer"]["rules"].startswith("spaCy 3.")
    assert card["settings"] == {"vocab_size": 8, "max_characters": 50, "heldout": 0.0, "seed": 3}
    assert card["vocabulary"] == 8
    corpus = Corpus(tmp_path / "data")
    unknown = sum(int(token) >= 8 for token in corpus.tokens)
    assert card["parts"]["train"]["oov_rate"] == pytest.approx(unknown / corpus.n_tokens)
    first, last = describe(card)
    assert re.search(mentions("train", 6, f"{1 - unknown / corpus.n_tokens:.2%}"), first)
    assert re.search(mentions(8, corpus.n_types), last)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_compressed_text_gives_the_same_arrays(suffix, pack, text, tmp_path):
    packed = tmp_path / f"text.txt{suffix}"
    packed.write_bytes(pack(TEXT.encode()))
    plain_card = prepare([text], tmp_path / "plain", heldout=0)
    packed_card = prepare([packed], tmp_path / "packed", heldout=0)
    plain, found = digests(tmp_path / "plain"), digests(tmp_path / "packed")
    assert plain.pop("card.json") != found.pop("card.json")  # the name of the file
    assert plain == found
    hashes = [card["sources"][0]["sha256_of_text"] for card in (plain_card, packed_card)]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_where_blocks_end_does_not_matter(size, text, lines, tmp_path, monkeypatch):
    prepare([text, lines], tmp_path / "whole", workers=1, heldout=0.2)
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", size)
    prepare([text, lines], tmp_path / "pieces", workers=1, heldout=0.2)
    assert digests(tmp_path / "whole") == digests(tmp_path / "pieces")


def test_the_number_of_workers_does_not_matter(text, lines, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 3000)
    for workers in (1, 2):
        prepare([text, lines], tmp_path / str(workers), workers=workers, heldout=0.1, vocab_size=60)
    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_globs_are_sorted_and_files_keep_their_order(tmp_path):
    for name in "bca":
        (tmp_path / f"{name}.txt").write_text(name, encoding="utf-8")
    prepare([tmp_path / "c.txt", tmp_path / "[ab].txt"], tmp_path / "data", heldout=0, pretokenized=True)
    assert sentences(tmp_path / "data") == [["c"], ["a"], ["b"]]


def test_a_share_of_the_lines_is_held_out(lines, tmp_path):
    prepare([lines], tmp_path / "data", heldout=0.2, pretokenized=True)
    train, heldout = (sentences(tmp_path / "data", part) for part in ("train", "heldout"))
    assert 60 < len(heldout) < 140
    both = sorted(map(tuple, train + heldout))
    assert both == sorted(tuple(line.split()) for line in lines.read_text(encoding="utf-8").splitlines())
    prepare([lines], tmp_path / "other", heldout=0.2, pretokenized=True, seed=1)
    assert sentences(tmp_path / "other", "heldout") != heldout


def test_a_line_that_stands_twice_is_never_in_both_parts(lines, tmp_path):
    prepare([lines, *[lines] * 2], tmp_path / "data", heldout=0.3, pretokenized=True)
    train, heldout = (set(map(tuple, sentences(tmp_path / "data", part))) for part in ("train", "heldout"))
    assert heldout
    assert not train & heldout


def test_files_are_held_out(text, lines, tmp_path):
    card = prepare([lines], tmp_path / "data", heldout=[text], pretokenized=True)
    assert len(sentences(tmp_path / "data")) == 500
    assert sentences(tmp_path / "data", "heldout") == [line.split() for line in PARAGRAPHS if line.strip()]
    assert [source["part"] for source in card["sources"]] == ["train", "heldout"]
    assert card["parts"]["heldout"]["oov_rate"] == 1.0


def test_the_words_of_a_given_vocabulary_come_first(lines, tmp_path):
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "of", "rose", "w3"])
    card = prepare([lines], tmp_path / "data", vocabulary=vocabulary, pretokenized=True, heldout=0)
    corpus = Corpus(tmp_path / "data")
    assert corpus.vocabulary == vocabulary
    assert corpus.types[:7] == [*vocabulary, "line"]
    assert corpus.counts[:5].tolist() == [500, 500, 0, 500, 0]
    assert card["settings"]["vocab_size"] is None


def test_a_vocabulary_in_another_order_is_refused(lines, tmp_path):
    with pytest.raises(InputError, match=mentions("<S>, </S>, <UNK>", "a, <S>, </S>")):
        prepare([lines], tmp_path / "data", vocabulary=Vocabulary(["a", "<S>", "</S>", "<UNK>"]), pretokenized=True)


def test_too_short_for_a_held_out_part_is_said(text, tmp_path, caplog):
    prepare([text], tmp_path / "data", heldout=1e-9)
    assert "held out" in caplog.records[0].message


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_text_without_a_token_is_refused_and_leaves_nothing(content, tmp_path):
    (tmp_path / "empty.txt").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=mentions("`heldout`")):
        prepare([tmp_path / "empty.txt"], tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_bytes_that_are_not_utf8_are_named_with_their_line(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 10)
    (tmp_path / "text.txt").write_bytes(b"good line\nanother\n\nb\xffd\n")
    with pytest.raises(InputError, match=mentions("text.txt", "line 4", "UTF-8", "0xff", "column 2")):
        prepare([tmp_path / "text.txt"], tmp_path / "data", pretokenized=True, workers=workers)
    assert not (tmp_path / "data").exists()


def test_a_byte_order_mark_is_not_text(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"\xef\xbb\xbfbow\nrose")
    prepare([tmp_path / "text.txt"], tmp_path / "data", heldout=0)
    assert sentences(tmp_path / "data") == [["bow"], ["rose"]]


def test_missing_files_are_named(text, tmp_path):
    with pytest.raises(MissingFileError, match=mentions("nothing.txt")):
        prepare([text, tmp_path / "nothing.txt"], tmp_path / "data")
    with pytest.raises(MissingFileError, match=mentions("*.gz")):
        prepare([tmp_path / "*.gz"], tmp_path / "data")
    with pytest.raises(MissingFileError, match=mentions(tmp_path)):
        prepare([tmp_path], tmp_path / "data")


def test_a_damaged_file_leaves_nothing(tmp_path):
    (tmp_path / "text.xz").write_bytes(lzma.compress(TEXT.encode())[:-9])
    with pytest.raises(InputError, match=mentions("text.xz")):
        prepare([tmp_path / "text.xz"], tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["text.xz"]


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, float("nan")])
def test_an_impossible_share_is_refused(share, text, tmp_path):
    with pytest.raises(ConfigError, match=mentions("heldout", share)):
        prepare([text], tmp_path / "data", heldout=share)


def test_a_file_cannot_be_trained_on_and_held_out(text, tmp_path):
    with pytest.raises(ConfigError, match=mentions("text.txt")):
        prepare([text], tmp_path / "data", heldout=[text])


def test_an_unknown_language_is_an_error_at_once(text, tmp_path):
    with pytest.raises(ConfigError, match=mentions("'qq'", "spaCy")):
        prepare([text], tmp_path / "data", lang="qq", workers=2)


def test_only_prepared_text_is_overwritten(text, lines, tmp_path):
    out = tmp_path / "data"
    out.mkdir()
    prepare([text], out, heldout=0)  # an empty folder is fine
    with pytest.raises(OutputExistsError, match=mentions(out, "`out`", "overwrite=True")):
        prepare([lines], out)
    prepare([lines], out, overwrite=True, heldout=0, pretokenized=True)
    assert len(sentences(out)) == 500
    other = tmp_path / "photos"
    other.mkdir()
    (other / "holiday.jpg").touch()
    with pytest.raises(OutputExistsError, match=mentions(other, "`out`")):
        prepare([text], other, overwrite=True)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match=mentions(out, "`out`")):
        prepare([text], out, overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"


def test_a_failed_run_keeps_what_was_there(text, tmp_path):
    out = tmp_path / "data"
    prepare([text], out, heldout=0)
    before = digests(out)
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(InputError):
        prepare([tmp_path / "bad.txt"], out, overwrite=True)
    assert digests(out) == before


def test_a_link_to_a_folder_stays_a_link(text, lines, tmp_path):
    (tmp_path / "large-disk").mkdir()
    out = tmp_path / "data"
    out.symlink_to(tmp_path / "large-disk")
    prepare([text], out, heldout=0)
    prepare([lines], out, overwrite=True, heldout=0, pretokenized=True)
    assert out.is_symlink()
    assert len(sentences(tmp_path / "large-disk")) == 500
    assert not list(tmp_path.glob(".*"))


def test_old_text_is_there_until_the_new_one_is(text, lines, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, "no")

    out = tmp_path / "data"
    prepare([text], out, heldout=0)
    before = digests(out)
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OutputError, match=mentions(out)):
        prepare([lines], out, overwrite=True, heldout=0, pretokenized=True)
    assert digests(out) == before
    assert not list(tmp_path.glob(".*"))


def test_a_worker_that_is_killed_is_reported(lines, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_work", _die)
    with pytest.raises(TorchelmoError, match=mentions("`workers`", "__main__")):
        prepare([lines], tmp_path / "data", pretokenized=True, workers=2)
    assert not (tmp_path / "data").exists()


def test_a_kill_between_the_two_moves_is_repaired(text, lines, tmp_path):
    out, aside = tmp_path / "data", tmp_path / ".data.old"
    prepare([text], out, heldout=0)
    before = digests(out)
    out.rename(aside)  # killed after the older folder was moved aside
    with pytest.raises(OutputExistsError):
        prepare([lines], out)
    assert digests(out) == before
    prepare([lines], tmp_path / "new", heldout=0, pretokenized=True)
    (tmp_path / "new").rename(aside)  # killed before the older folder was removed
    prepare([lines], out, overwrite=True, heldout=0, pretokenized=True)
    assert len(sentences(out)) == 500
    assert not list(tmp_path.glob(".*"))


def test_a_second_process_is_refused(text, tmp_path):
    with (
        hold_lock(tmp_path / ".data.lock", "data"),
        pytest.raises(OutputError, match=mentions(tmp_path / "data", f"process {os.getpid()}")),
    ):
        prepare([text], tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_unknown_words_are_trained_even_if_the_vocabulary_is_large(lines, tmp_path, caplog):
    card = prepare([lines], tmp_path / "data", heldout=0, pretokenized=True)
    corpus = Corpus(tmp_path / "data")
    once = int((corpus.counts == 1).sum())
    assert once > 0
    assert corpus.target_counts[2] == once
    assert (card["min_count"], card["vocabulary"]) == (2, card["types"] - once)
    assert re.search(mentions("<UNK>", card["vocabulary"]), caplog.text)
    assert any("once" in line for line in describe(card))


def test_a_text_without_rare_words_cannot_train_the_unknown_word(tmp_path, caplog):
    (tmp_path / "text.txt").write_text("a bow\na bow\n")
    card = prepare([tmp_path / "text.txt"], tmp_path / "data", heldout=0, pretokenized=True)
    assert (card["min_count"], card["vocabulary"]) == (1, 5)
    assert re.search(mentions("<UNK>", "`vocab_size`"), caplog.text)


def _die(block):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_that_looks_finished_and_no_workers(lines, tmp_path):
    """SIGKILL to the first process while its workers are busy."""
    (tmp_path / "many.txt").write_text(lines.read_text(encoding="utf-8") * 20_000, encoding="utf-8")
    command = f"""
if __name__ == "__main__":
    from torchelmo.lm.preparation import prepare
    prepare([{str(tmp_path / "many.txt")!r}], {str(tmp_path / "data")!r}, pretokenized=True, workers=2)
"""
    script = tmp_path / "script.py"
    script.write_text(command, encoding="utf-8")
    run = subprocess.Popen([sys.executable, str(script)])
    try:
        wait_until(lambda: any(file.stat().st_size for file in tmp_path.glob(".data.*.tmp/data/.train.ids")))
        workers = children(run.pid)
        assert len(workers) >= 2
    finally:
        run.kill()
        run.wait()
    assert not (tmp_path / "data").exists()
    wait_until(lambda: not any(os.path.exists(f"/proc/{worker}") for worker in workers))
    assert list(tmp_path.glob(".data.*"))
    prepare([lines], tmp_path / "data", pretokenized=True)
    assert not list(tmp_path.glob(".data.*"))  # leftovers of the killed process are gone


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return file.read().split()


def test_proteins_are_sentences_of_residues(tmp_path):
    path = tmp_path / "p.fasta.gz"
    path.write_bytes(gzip.compress(b">a\nMALL\nH\n>b\nmal*\n>c\nMAL\n"))
    card = prepare([path], tmp_path / "data", vocab_size=7, format="fasta", heldout=0, max_characters=3)
    corpus = Corpus(tmp_path / "data")
    assert (card["parts"]["train"]["sentences"], corpus.n_tokens) == (3, 11)
    assert corpus.tokens[:5].tolist() == corpus.tokens[[0, 1, 2, 2, 4]].tolist()
    assert corpus.lang is None
    assert card["sources"][0]["lines"] == 3
    assert card["tokenizer"] == {"rules": "residues", "lang": None}
    text = tmp_path / "text.txt"
    text.write_text("M A L L H\nM A L\nM A L\n")
    prepare([text], tmp_path / "same", vocab_size=7, pretokenized=True, heldout=0, max_characters=3)
    for name in ("types.txt", "vocab.txt", "train.tokens.npy", "train.offsets.npy"):
        assert (tmp_path / "data" / name).read_bytes() == (tmp_path / "same" / name).read_bytes()


def test_large_fasta_files_are_read_in_blocks(tmp_path, monkeypatch):
    path = tmp_path / "p.fasta"
    path.write_text("".join(f">p{i}\n{'MALH'[i % 4] * (i + 1)}\n" for i in range(50)))
    prepare([path], tmp_path / "one", format="fasta", heldout=0.3)
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 100)
    prepare([path], tmp_path / "two", format="fasta", heldout=0.3, workers=1)
    for name in os.listdir(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_wrong_protein_is_named(tmp_path):
    path = tmp_path / "p.fasta"
    path.write_text(">a\nMAL\n>b\nM1L\n")
    with pytest.raises(InputError, match=mentions(path, "line 4", "'1'")):
        prepare([path], tmp_path / "data", format="fasta")
    with pytest.raises(ConfigError, match=mentions("'fastq'")):
        prepare([path], tmp_path / "data", format="fastq")
