"""Propositions in columns: three layouts, round trips, and what is refused."""

import bz2
from itertools import pairwise

import pytest
from facts import mentions
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.config import build_config
from torchelmo.errors import ConfigError, InputError
from torchelmo.tasks.srl.data import Proposition, SrlData, argument_cells, read, write
from torchelmo.tasks.tagging import Span, tags_of

# Two predicates, a V of two tokens, and a predicate whose V stands elsewhere; a sentence without any.
PROPBANK = """\
d/1 0 0 They PRP (S* - - (ARG0*) *
d/1 0 1 busted VBD (VP* bust bust_up.04 (V* *
d/1 0 2 up RP * - - *) *
d/1 0 3 three CD (NP* - - (ARG1* *
d/1 0 4 x NN * - - * (V*)
d/1 0 5 rays NNS *))) xray xray.01 *) (C-V*)

d/1 1 0 *** NFP (X*) - -

d/1 2 0 Go VB (S*) go go.01 (V*)
"""
CONLL2012 = """\
#begin document (bc/x); part 000
bc/x 0 0 # NN (S* pound - 1 Ann * (ARG1* * (0
bc/x 0 1 signs NNS * sign - 2 Ann * *) * 0)
bc/x 0 2 were VBD * be 03 - Ann * * (V*) -
bc/x 0 3 drawn VBN *) draw 01 - Ann (NORP) (V*) * -

bc/x 0 0 So RB (S*) - - - Ben * -

#end document
"""
CONLL2005 = """\
She PRP (S* - - (A0*) (A0*)
came VBD * 01 come (V*) *
and CC * - - * *
# NN * - - * *
went VBD *) 02 go * (V*)

Yes UH (S*) - -
"""
GO = Proposition(("Go",), 0, ["B-V"], (0,))
BUSTED = ("They", "busted", "up", "three", "x", "rays")
IN_PROPBANK = [
    Proposition(BUSTED, 1, ["B-ARG0", "B-V", "I-V", "B-ARG1", "I-ARG1", "I-ARG1"], (1, 5)),
    Proposition(BUSTED, 5, ["O", "O", "O", "O", "B-V", "B-C-V"], (1, 5)),
    GO,
]


@pytest.fixture
def file(tmp_path):
    def write_file(text, name="data.conll"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


@pytest.mark.parametrize("format_", ["auto", "propbank"])
def test_propbank_columns_give_one_example_for_each_predicate(file, format_):
    assert read(file(PROPBANK), SrlData(format_)) == IN_PROPBANK
    assert read(file(PROPBANK.replace(" ", "\t")), SrlData(format_)) == IN_PROPBANK


@pytest.mark.parametrize("format_", ["auto", "conll2012"])
def test_conll_2012_columns(file, format_):
    tokens = ("#", "signs", "were", "drawn")
    assert read(file(CONLL2012), SrlData(format_)) == [
        Proposition(tokens, 3, ["B-ARG1", "I-ARG1", "O", "B-V"], (3, 2)),
        Proposition(tokens, 2, ["O", "O", "B-V", "O"], (3, 2)),
    ]


def test_conll_2012_columns_without_the_lines_around_documents(file):
    bare = "d 0 0 Go VB (S* go 01 - - * (V*) -\nd 0 1 ! . *) - - - - * * -\n"
    assert read(file(bare), SrlData()) == [Proposition(("Go", "!"), 0, ["B-V", "O"], (0,))]


@pytest.mark.parametrize("format_", ["auto", "conll2005"])
def test_conll_2005_columns_with_any_number_between_word_and_predicate(file, format_):
    tokens = ("She", "came", "and", "#", "went")
    expected = [
        Proposition(tokens, 1, ["B-A0", "B-V", "O", "O", "O"], (1, 4)),
        Proposition(tokens, 4, ["B-A0", "O", "O", "O", "B-V"], (1, 4)),
    ]
    assert read(file(CONLL2005), SrlData(format_)) == expected
    narrow = "\n".join(" ".join(line.split()[:1] + line.split()[4:]) for line in CONLL2005.splitlines())
    assert read(file(narrow), SrlData(format_)) == expected


def test_compressed_files_are_read(tmp_path):
    (tmp_path / "a.bz2").write_bytes(bz2.compress(PROPBANK.encode()))
    assert read(tmp_path / "a.bz2", SrlData()) == IN_PROPBANK


def test_what_is_written_is_read_back(tmp_path):
    write(tmp_path / "out.conll", IN_PROPBANK)
    assert (tmp_path / "out.conll").read_text(encoding="utf-8").splitlines()[:3] == [
        "They\t-\t(ARG0*)\t*",
        "busted\tbusted\t(V*\t*",
        "up\t-\t*)\t*",
    ]
    assert read(tmp_path / "out.conll", SrlData()) == IN_PROPBANK


@st.composite
def sentences(draw):
    n = draw(st.integers(1, 8))
    predicates = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4, unique=True).map(sorted))
    tokens = tuple(draw(st.lists(st.sampled_from(["a", "#", "*", "(A0*", "x-"]), min_size=n, max_size=n)))
    result = []
    for predicate in predicates:
        cuts = sorted(draw(st.sets(st.integers(0, n), min_size=2)))
        kinds = draw(st.lists(st.sampled_from(["", "A0", "C-A0", "V", "AM-TMP"]), min_size=n + 1, max_size=n + 1))
        spans = [Span(label, *ends) for label, ends in zip(kinds, pairwise(cuts)) if label]
        result.append(Proposition(tokens, predicate, tags_of(spans, n), tuple(predicates)))
    return result


@given(st.lists(sentences(), min_size=1, max_size=3))
def test_any_propositions_are_read_back(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("srl") / "out"
    propositions = [one for part in parts for one in part]
    write(path, propositions)
    assert read(path, SrlData("conll2005")) == propositions


def test_brackets_of_touching_spans():
    assert argument_cells(["B-A0", "B-A0", "I-A0", "O"]) == ["(A0*)", "(A0*", "*)", "*"]


@pytest.mark.parametrize(
    ("cells", "line", "expected", "found"),
    [
        (["(A0*", "(A1*)", "*)"], 2, ("A0",), "'(A1*)'"),
        (["*", "(A0(A1*", "*))"], 2, (), "'(A0(A1*'"),
        (["*", "*)", "*"], 2, (), "'*)'"),
        (["*", "(A0*", "*"], 2, ("A0",), "'(A0*'"),
        (["*", "*", "A0"], 3, ("(A0*", "*)", "(A0*)"), "'A0'"),
        (["(A0*", "*", "*))"], 3, ("(A0*", "*)", "(A0*)"), "'*))'"),
    ],
)
def test_brackets_that_cannot_be_read_are_named_with_their_line(file, cells, line, expected, found):
    path = file("".join(f"w {'go' if i == 0 else '-'} {cell}\n" for i, cell in enumerate(cells)))
    with pytest.raises(InputError, match=mentions(path, f"line {line}", *expected, found)):
        read(path, SrlData())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("d/1 0 2 up RP * - - *) *", "d/1 0 2 up RP * - - *)", ("line 3", 10)),
        ("xray xray.01 *)", "xray - *)", ("line 1", 8, "propbank")),
        ("d/1 1 0 *** NFP (X*) - -", "d/1 1 0 *** NFP", ("line 8", 8, "propbank")),
    ],
)
def test_columns_that_do_not_fit_are_named_with_their_line(file, old, new, words):
    assert old in PROPBANK
    with pytest.raises(InputError, match=mentions(*words)):
        read(file(PROPBANK.replace(old, new)), SrlData())


def test_a_wrong_number_of_columns_says_what_was_counted(file):
    with pytest.raises(InputError, match=mentions("line 1", "propbank", 1, 2)):
        read(file(PROPBANK.replace("xray xray.01 *)", "xray - *)")), SrlData())
    with pytest.raises(InputError, match=mentions("line 1", "conll2005", 3)):
        read(file("She 01 (A0*)\ncame 02 (V*)\n"), SrlData())
    with pytest.raises(InputError, match=mentions("line 2", "(V*)")):
        read(file(CONLL2012.replace("(V*) * -", "* * -")), SrlData())


def test_files_without_propositions_are_refused(file):
    with pytest.raises(InputError, match=mentions("data.conll")):
        read(file("\n\n"), SrlData())
    with pytest.raises(InputError, match=mentions("data.conll", "data.format")):
        read(file("Yes -\n\nNo -\n"), SrlData())


def test_an_unknown_format_is_refused():
    with pytest.raises(ConfigError, match=mentions("format", "'auto'", "'conll2012'", "'propbank'", "'conll2005'")):
        build_config(SrlData, {"format": "x"})


def test_incomplete_sentences_are_not_written(tmp_path):
    with pytest.raises(InputError, match=mentions(2, 1, "'They busted up three x …'")):
        write(tmp_path / "out", IN_PROPBANK[:1])
    with pytest.raises(InputError, match=mentions(5, "'They busted up three x …'")):
        write(tmp_path / "out", [IN_PROPBANK[1], IN_PROPBANK[0]])
    with pytest.raises(InputError, match=mentions(1, "'Go'")):
        write(tmp_path / "out", [GO._replace(tags=None)])
    assert not list(tmp_path.iterdir())
