"""Reading and writing named entities."""

import pytest
from facts import mentions
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.tasks.ner import Ner, NerData, read, write
from torchelmo.tasks.tagging import Span, Tagged, tags_of

CONLL_2003 = """\
-DOCSTART- -X- -X- O

U.N. NNP I-NP I-ORG
official NN I-NP O
Rolf NNP I-NP I-PER
Ekeus NNP I-NP I-PER
heads VBZ I-VP O
for IN I-PP O
Baghdad NNP I-NP I-LOC
. . O O

-DOCSTART- -X- O

Paris NNP I-NP I-LOC
London NNP I-NP B-LOC
"""
SENTENCES = [
    Tagged("U.N. official Rolf Ekeus heads for Baghdad .".split(), "B-ORG O B-PER I-PER O O B-LOC O".split()),
    Tagged(["Paris", "London"], ["B-LOC", "B-LOC"]),
]


def file(folder, text, name="train.conll"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["auto", "iob1"])
def test_conll_2003_is_read_without_its_document_lines(tmp_path, scheme):
    assert read(file(tmp_path, CONLL_2003), NerData(scheme=scheme)) == SENTENCES


def test_wnut_2017_is_read_with_hash_signs_as_tokens_and_tabs_on_blank_lines(tmp_path):
    text = "#\tO\n#Paris\tB-location\n\t\nThe\tB-creative-work\nWire\tI-creative-work\n"
    assert read(file(tmp_path, text), NerData()) == [
        Tagged(["#", "#Paris"], ["O", "B-location"]),
        Tagged(["The", "Wire"], ["B-creative-work", "I-creative-work"]),
    ]


def test_a_document_line_right_before_a_sentence_is_skipped_too(tmp_path):
    assert read(file(tmp_path, "-DOCSTART- O\nParis B-LOC\n"), NerData()) == [Tagged(["Paris"], ["B-LOC"])]


@pytest.mark.parametrize("scheme", ["bio", "iob1", "bioes"])
@pytest.mark.parametrize("named", [True, False])
def test_what_is_written_reads_back_in_every_scheme(tmp_path, scheme, named):
    write(tmp_path / "out.conll", SENTENCES, scheme)
    assert read(tmp_path / "out.conll", NerData(scheme=scheme if named else "auto")) == SENTENCES


letters = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=" \ufeff")


@given(st.lists(st.lists(st.text(letters, min_size=1, max_size=4), min_size=1, max_size=5), min_size=1, max_size=3))
def test_any_token_reads_back(tmp_path_factory, sentences):
    path = tmp_path_factory.mktemp("ner") / "out.conll"
    tagged = [Tagged(tokens, tags_of([Span("X", 0, 1)], len(tokens))) for tokens in sentences]
    write(path, tagged)
    assert read(path, NerData()) == tagged


@pytest.mark.parametrize("token", ["New York", "a\tb", "a\nb", "", "a\r"])
def test_a_token_that_would_not_read_back_is_refused_and_nothing_is_left(tmp_path, token):
    with pytest.raises(InputError, match=mentions("out.conll", repr(token))):
        write(tmp_path / "out.conll", [Tagged([token], ["O"])])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Paris B-LOC\n\nLondon\n", ("line 3", "'London'")),
        ("Paris NNP B-LOC\nLondon B-LOC\n", ("line 2", 3, 2)),
        ("Paris B-LOC\nNew York B-LOC\n", ("line 2", 2, 3)),
        ("\nParis X-LOC\n", ("line 2", "B-", "I-", "'X-LOC'")),
        ("Paris LOC\n", ("line 1", "'LOC'")),
        ("", ()),
        ("-DOCSTART- -X- -X- O\n\n", ()),
    ],
)
def test_malformed_files_are_refused_with_the_line(tmp_path, text, words):
    with pytest.raises(InputError, match=mentions("train.conll", *words)):
        read(file(tmp_path, text), NerData())


def test_a_named_scheme_is_held_to(tmp_path):
    with pytest.raises(InputError, match=mentions("train.conll", "line 3", "BIO", "'I-ORG'")):
        read(file(tmp_path, CONLL_2003), NerData(scheme="bio"))


def test_predictions_in_columns_are_read_back(tmp_path):
    predicted = [(Tagged(sentence.tokens), sentence.tags) for sentence in SENTENCES]
    (tmp_path / "out.conll").write_text("\n".join(Ner().conll(predicted, NerData())), encoding="utf-8")
    assert read(tmp_path / "out.conll", NerData()) == SENTENCES


def test_a_token_with_a_space_does_not_fit_into_a_column():
    with pytest.raises(InputError, match=mentions("EE. UU.")):
        list(Ner().conll([(Tagged(["EE. UU."]), ["B-LOC"])], NerData()))


def test_a_file_of_another_kind_is_told_the_format(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The archer bent her bow .\n")
    with pytest.raises(InputError, match=mentions(path, "line 1", "'.'", "Paris B-LOC")):
        read(path, NerData())
