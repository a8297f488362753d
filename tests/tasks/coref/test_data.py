"""Columns of CoNLL-2012 and of LitBank, there and back."""

import gzip
import logging
import re

import pytest
from facts import mentions
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.errors import InputError, MissingFileError
from torchelmo.tasks.coref.data import (
    Document,
    Mention,
    crop,
    document_lines,
    read_documents,
    sort_clusters,
    write_documents,
)

CONLL = """\
#begin document (bn/abc/00/abc_0001); part 000
bn/abc/00/abc_0001   0   0     Anna   NNP   (TOP(S(NP*)   -   -   -   Speaker#1   (PERSON)   (ARG0*)   (12)
bn/abc/00/abc_0001   0   1      saw   VBD        (VP*     -   -   -   Speaker#1   *          (V*)      -
bn/abc/00/abc_0001   0   2      her  PRP$        (NP*     -   -   -   Speaker#1   *          (ARG1*    (3|(12)
bn/abc/00/abc_0001   0   3  brother    NN          *)))   -   -   -   Speaker#1   *          *)        3)
bn/abc/00/abc_0001   0   4       /.     .           *))   -   -   -   Speaker#1   *          *         -

bn/abc/00/abc_0001   0   0       He   PRP   (TOP(S(NP*)   -   -   -   Speaker#2   *          (3)
bn/abc/00/abc_0001   0   1    waved   VBD          *))    -   -   -   Speaker#2   *          -

#end document
#begin document (bn/abc/00/abc_0001); part 001
bn/abc/00/abc_0001   1   0       Hm    UH           *     -   -   -   -           *          -

#end document
"""
LITBANK = (
    "#begin document (12_a_brat); part 0\n"
    + "".join(
        f"12_a_brat\t0\t{i}\t{word}\t_\t_\t_\t_\t_\t_\t_\t_\t{cell}\n"
        for i, (word, cell) in enumerate([("the", "(5"), ("old", ""), ("sea", "(4)|5)")])
    )
    + "\n#end document\n"
)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def columns(*cells):
    rows = "".join(f"d 0 {i} w{i} {cell}\n" for i, cell in enumerate(cells))
    return f"#begin document (d); part 0\n{rows}\n#end document\n"


def test_a_file_of_the_shared_task(tmp_path):
    first, second = read_documents(write(tmp_path / "a.v4_gold_conll", CONLL))
    assert first.name == "bn/abc/00/abc_0001"
    assert (first.part, second.part) == ("000", "001")
    assert first.genre == "bn"
    assert first.sentences == [["Anna", "saw", "her", "brother", "."], ["He", "waved"]]
    assert first.speakers == ["Speaker#1"] * 5 + ["Speaker#2"] * 2
    assert first.clusters == [[Mention(0, 1), Mention(2, 3)], [Mention(2, 4), Mention(5, 6)]]
    assert second.sentences == [["Hm"]]
    assert second.speakers == []
    assert second.clusters == []


def test_an_empty_last_column_is_no_mention(tmp_path):
    (document,) = read_documents(write(tmp_path / "a.conll", LITBANK))
    assert document.sentences == [["the", "old", "sea"]]
    assert document.genre == ""
    assert document.speakers == []
    assert document.clusters == [[Mention(0, 3)], [Mention(2, 3)]]


@pytest.mark.parametrize("nothing", ["-", "_"])
def test_signs_for_no_mention(tmp_path, nothing):
    (document,) = read_documents(write(tmp_path / "a.conll", columns("(1)", nothing, "(1)")))
    assert document.clusters == [[Mention(0, 1), Mention(2, 3)]]


def test_mentions_nest_and_cross(tmp_path):
    (document,) = read_documents(write(tmp_path / "a.conll", columns("(1", "(2|(1", "1)|(3", "1)", "2)", "3)")))
    # The "(1" that opened last is closed first; 1, 2 and 3 cross.
    assert document.clusters == [[Mention(0, 4), Mention(1, 3)], [Mention(1, 5)], [Mention(2, 6)]]


def test_a_mention_in_two_clusters_makes_them_one(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        (document,) = read_documents(write(tmp_path / "a.conll", columns("(1)|(2)", "(1)", "(2)", "(3)")))
    assert document.clusters == [[Mention(0, 1), Mention(1, 2), Mention(2, 3)], [Mention(3, 4)]]
    assert re.search(mentions("a.conll", "line 1", "cluster 2"), caplog.text)


def test_a_folder_is_read_in_order_of_its_names(tmp_path):
    (tmp_path / "inside").mkdir()
    write(tmp_path / "inside" / "b.v4_gold_conll", columns("(1)"))
    write(tmp_path / "notes.txt", "not read")
    (tmp_path / "a.conll.gz").write_bytes(gzip.compress(CONLL.encode()))
    assert [document.name for document in read_documents(tmp_path)] == ["bn/abc/00/abc_0001"] * 2 + ["d"]


def test_a_folder_without_such_files_is_an_error(tmp_path):
    with pytest.raises(MissingFileError, match=mentions(tmp_path, "conll")):
        read_documents(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (columns("(1", "-"), ("line 2", "'1)'", "'(1'")),
        (columns("-", "1)"), ("line 3", "'(1'", "'1)'")),
        (columns("-", "1"), ("line 3", "'1'")),
        (columns("-", "(1||(2"), ("line 3", "'(1||(2'")),
        ("d 0 0 w (1)\n", ("line 1", "'#begin document (name); part 000'", "'d 0 0 w (1)'")),
        ("#begin document d\n", ("line 1", "'#begin document (name); part 000'", "'#begin document d'")),
        ("#begin document (d); part 0\nd 0 0 w\n", ("line 2", 5, 4, "'d 0 0 w'")),
        (columns("-").replace("#end document\n", ""), ("line 3", "#end document", "line 1")),
        (columns("-").replace("#end", "#begin"), ("line 4", "#end", "line 1")),
        ("#begin document (d); part 0\n\n#end document\n", ("line 1",)),
    ],
)
def test_malformed_files_name_the_line(tmp_path, text, words):
    with pytest.raises(InputError, match=mentions("bad.conll", *words)):
        read_documents(write(tmp_path / "bad.conll", text))


def test_what_is_written_is_read_back(tmp_path):
    documents = read_documents(write(tmp_path / "a.conll", CONLL + LITBANK))
    write_documents(tmp_path / "b.conll", documents)
    assert read_documents(tmp_path / "b.conll") == documents
    line = (tmp_path / "b.conll").read_text(encoding="utf-8").splitlines()[3]
    assert line.split("\t") == ["bn/abc/00/abc_0001", "000", "2", "her", *"-----", "Speaker#1", "*", "(0)|(1"]


@st.composite
def documents(draw):
    n_tokens = draw(st.integers(1, 12))
    spans = draw(st.sets(st.tuples(st.integers(0, n_tokens - 1), st.integers(1, 5)), max_size=10))
    mentions = sorted({Mention(start, min(start + width, n_tokens)) for start, width in spans})
    clusters: dict[int, list[Mention]] = {}
    for mention in mentions:
        cluster = clusters.setdefault(draw(st.integers(0, 3)), [])
        if not any(m.start < mention.start < m.end < mention.end for m in cluster):
            cluster.append(mention)
    cut = draw(st.integers(0, n_tokens))
    words = [f"w{i}" for i in range(n_tokens)]
    sentences = [part for part in (words[:cut], words[cut:]) if part]
    return Document("nw/x", "000", sentences, [], "nw", sort_clusters(c for c in clusters.values() if c))


@given(document=documents())
def test_any_clusters_without_crossing_survive_the_columns(tmp_path_factory, document):
    path = tmp_path_factory.mktemp("round") / "a.conll"
    write_documents(path, [document])
    assert read_documents(path) == [document]


def test_one_cluster_cannot_cross_itself_in_brackets():
    document = Document("d", "0", [list("abcde")], [], "", [[Mention(0, 4), Mention(1, 2), Mention(2, 5)]])
    with pytest.raises(InputError, match=mentions("part 0", "(0, 4)", "(2, 5)")):
        list(document_lines(document))


def test_crop_keeps_what_lies_inside():
    document = Document(
        "d", "0", [["a", "b"], ["c", "d", "e"], ["f"]], list("uvwxyz"), "",
        [[Mention(0, 1), Mention(2, 4), Mention(5, 6)], [Mention(1, 2)], [Mention(4, 5)]],
    )  # fmt: skip
    piece = crop(document, 1, 2)
    assert piece.sentences == [["c", "d", "e"], ["f"]]
    assert piece.speakers == list("wxyz")
    assert piece.clusters == [[Mention(0, 2), Mention(3, 4)], [Mention(2, 3)]]
