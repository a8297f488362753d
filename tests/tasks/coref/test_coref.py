"""The task as the runner and the command line see it."""

import pytest
import torch
from facts import mentions

from torchelmo.config import build_config
from torchelmo.errors import InputError
from torchelmo.tasks import load, train
from torchelmo.tasks.config import ElmoConfig, TaskConfig
from torchelmo.tasks.coref import Coref
from torchelmo.tasks.coref.data import CorefData, Document, Mention, write_documents
from torchelmo.tasks.coref.model import CorefConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.task import Source, find_task
from torchelmo.tasks.words import WordEmbedding

DOCUMENT = Document(
    "bn/x", "0", [["Anna", "saw", "her", "brother", "."], ["He", "waved", "."]], [], "bn",
    [[Mention(0, 1), Mention(2, 3)], [Mention(2, 4), Mention(5, 6)]],
)  # fmt: skip
SMALL = CorefConfig(hidden_dim=4, ffnn_dim=5, feature_dim=2, max_width=3)


def test_it_is_found_by_its_name():
    assert isinstance(find_task("coref"), Coref)


def test_labelled_files_are_read(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("#begin document (d); part 0\nd 0 0 He (1)\nd 0 1 saw -\nd 0 2 himself (1)\n\n#end document\n")
    (document,) = Coref().read(path, CorefData())
    assert document.clusters == [[(0, 1), (2, 3)]]
    assert Coref().sentences(document) == [["He", "saw", "himself"]]


def test_vocabularies_are_the_genres():
    documents = [DOCUMENT, DOCUMENT._replace(genre="nw"), DOCUMENT._replace(genre="")]
    assert Coref().vocabularies(documents, CorefData()) == {"genres": ["bn", "nw"]}


def test_the_score_holds_the_metric():
    task = Coref()
    predictions = [DOCUMENT.clusters]
    assert task.score([DOCUMENT], predictions)[task.metric] == pytest.approx(100)
    assert "CEAFφ4" in task.report([DOCUMENT], predictions)


def test_clusters_are_shown_in_brackets_and_listed():
    assert Coref().show(DOCUMENT, DOCUMENT.clusters) == (
        "[1 Anna] saw [2 [1 her] brother] .\n[2 He] waved .\n\n1: Anna | her\n2: her brother | He\n"
    )


def test_mentions_that_begin_or_end_together_are_shown_as_they_nest():
    document = Document("d", "0", [["the", "old", "man"]], [], "", None)
    shown = Coref().show(document, [[Mention(0, 3), Mention(2, 3)], [Mention(0, 2)]])
    assert shown.splitlines()[0] == "[1 [2 the old] [1 man]]"


def test_no_clusters_are_shown_as_such():
    text, said = Coref().show(DOCUMENT, []).split("\n\n")
    assert text == "Anna saw her brother .\nHe waved ."
    assert said


def test_the_record_gives_offsets_and_text():
    record = Coref().record(DOCUMENT, DOCUMENT.clusters)
    assert record["sentences"] == DOCUMENT.sentences
    assert record["clusters"][1] == [
        {"start": 2, "end": 4, "text": "her brother"},
        {"start": 5, "end": 6, "text": "He"},
    ]


def test_a_blank_line_ends_a_document(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\nAnna slept .\nShe snored .\n\n\nBob ran .\n")
    documents = list(Coref().read_input(Source(str(path), lang=None), CorefData(), {}))
    assert [document.sentences for document in documents] == [
        [["Anna", "slept", "."], ["She", "snored", "."]],
        [["Bob", "ran", "."]],
    ]
    assert [document.part for document in documents] == ["0", "1"]
    assert documents[0].clusters is None
    assert [[place.line for place in document.places] for document in documents] == [[2, 3], [6]]


def test_raw_text_is_split_into_sentences(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Anna slept. She snored.\n")
    (document,) = Coref().read_input(Source(str(path)), CorefData(), {})
    assert document.sentences == [["Anna", "slept", "."], ["She", "snored", "."]]
    (mentions_,) = Coref().record(document, [[Mention(0, 1), Mention(3, 4)]])["clusters"]
    assert mentions_ == [
        {"start": 0, "end": 1, "line": 1, "start_char": 0, "end_char": 4, "text": "Anna"},
        {"start": 3, "end": 4, "line": 1, "start_char": 12, "end_char": 15, "text": "She"},
    ]


@pytest.mark.parametrize("place", ["input", "output", "both"])
def test_elmo_enters_at_the_input_and_beside_the_bilstm(tiny_bilm, place):
    torch.manual_seed(0)
    elmo = ElmoLayers(tiny_bilm, ElmoConfig(place=place))
    inputs = TokenInput(WordEmbedding(["Anna", "saw"], dim=3), elmo=elmo)
    model = Coref().build(SMALL, inputs, {"genres": ["bn"]})
    at_output = elmo.dim if place != "input" else 0
    assert model.spans.parts == [8 + at_output, 8 + at_output, inputs.dim, 2]
    model.train().loss([DOCUMENT]).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in elmo.mixes.parameters())
    with torch.no_grad():
        assert isinstance(model.eval().predict([DOCUMENT])[0], list)


def test_it_is_trained_saved_and_loaded_by_the_runner(tmp_path):
    write_documents(tmp_path / "train.conll", [DOCUMENT, DOCUMENT._replace(part="1")])
    config = build_config(
        TaskConfig,
        {
            "task": "coref",
            "train": str(tmp_path / "train.conll"),
            "dev": str(tmp_path / "train.conll"),
            "out": str(tmp_path / "run"),
            "epochs": 1,
            "batch_size": 1,
            "words": {"dim": 4},
            "model": {"hidden_dim": 4, "ffnn_dim": 5, "feature_dim": 2, "max_sentences": 1, "singletons": True},
        },
    )
    result = train(config).result
    trained = load(tmp_path / "run")
    predictions = trained.predict_examples([DOCUMENT, DOCUMENT])
    assert result.metric == "average"
    assert trained.task.score([DOCUMENT, DOCUMENT], predictions) == result.scores
    (tmp_path / "none.conll").write_text("\n")
    with pytest.raises(InputError, match=mentions(tmp_path / "none.conll", "coref")):
        trained.evaluate(tmp_path / "none.conll")


def test_predictions_in_columns_are_read_back(tmp_path):
    path = tmp_path / "out.conll"
    path.write_text("".join(Coref().conll([(DOCUMENT, DOCUMENT.clusters[:1])], CorefData())))
    (document,) = Coref().read(path, CorefData())
    assert (document.sentences, document.clusters) == (DOCUMENT.sentences, DOCUMENT.clusters[:1])
