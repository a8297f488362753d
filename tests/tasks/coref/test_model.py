"""The whole model: what it keeps, learns and predicts."""

import dataclasses

import pytest
import torch
from facts import mentions
from fitting import fit, predict

from torchelmo.errors import ConfigError
from torchelmo.tasks.coref.data import Document, Mention, crop
from torchelmo.tasks.coref.metrics import score_documents
from torchelmo.tasks.coref.model import CorefConfig, CorefModel, Ranking
from torchelmo.tasks.coref.scoring import marginal_loss, span_grid
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.words import WordEmbedding

SMALL = CorefConfig(
    hidden_dim=12,
    ffnn_dim=16,
    feature_dim=4,
    max_width=4,
    n_antecedents=10,
    lexical_dropout=0.0,
    dropout=0.0,
)


def document(text, name="d"):
    """Sentences are lines, mentions [1 in brackets]."""
    sentences, open_mentions, clusters = [], [], {}
    place = 0
    for line in text.strip().splitlines():
        sentence = []
        for word in line.split():
            if word.startswith("["):
                open_mentions.append((int(word[1:]), place))
                continue
            sentence.append(word.rstrip("]"))
            place += 1
            for _ in range(len(word) - len(word.rstrip("]"))):
                cluster, start = open_mentions.pop()
                clusters.setdefault(cluster, []).append(Mention(start, place))
        sentences.append(sentence)
    return Document(name, "0", sentences, [], "", sorted(sorted(cluster) for cluster in clusters.values()))


DOCUMENTS = [
    document("[1 Anna] met [2 a doctor] .\n[2 He] knew [1 her] and [3 [1 her] sister] .\n[3 She] slept ."),
    document("[1 The old king] had [2 a dog] .\n[2 It] loved [1 him] .\n[1 He] fed [2 the dog] ."),
    document("[1 Bob] and [2 Ada] ran .\n[2 She] won and [1 he] lost .\n[1 Bob] was sad but [2 Ada] sang ."),
]
OF_ONE_WORD = [
    document("[1 Anna] met [2 Bob] .\n[2 He] knew [1 her] and [3 Ada] .\n[3 She] slept near [2 him] ."),
    document("[1 Kings] had [2 dogs] .\n[2 They] loved [1 them] .\n[1 They] fed [2 them] ."),
    document("[1 Bob] and [2 Ada] ran .\n[2 She] won and [1 he] lost .\n[1 Bob] sang but [2 Ada] met [1 him] ."),
]
WORDS = sorted({word for d in [*DOCUMENTS, *OF_ONE_WORD] for sentence in d.sentences for word in sentence})


def build(config=SMALL, genres=()):
    torch.manual_seed(1)
    return CorefModel(config, TokenInput(WordEmbedding(WORDS, dim=10)), genres)


def learn_by_heart(config, documents):
    """The best score on what was learned, in at most 300 steps."""
    model = build(config)
    for _ in range(10):
        fit(model, documents, steps=30, lr=0.02)
        average = score_documents(documents, predict(model, documents))["average"]
        if average >= 99:
            break
    return average


def test_a_few_documents_are_learned_by_heart():
    # All spans are kept: a gold mention that is pruned has no part in the published loss, and may never come back.
    assert sum(len(cluster) for d in OF_ONE_WORD for cluster in d.clusters) == 20
    assert learn_by_heart(dataclasses.replace(SMALL, max_width=1, spans_per_token=1.0), OF_ONE_WORD) >= 99


def test_singletons_are_learned_by_heart():
    alone = document("[1 Bob] and [2 Ada] ran to [3 a house] .\n[2 She] won in [4 Rome] .")
    config = dataclasses.replace(SMALL, singletons=True, spans_per_token=1.0)
    assert learn_by_heart(config, [*DOCUMENTS[:2], alone]) >= 99


def test_ranking_keeps_a_share_of_the_tokens_and_agrees_with_its_parts():
    model = build().eval()
    ranking = model.rank(DOCUMENTS[0])
    n_tokens = sum(map(len, DOCUMENTS[0].sentences))
    assert len(ranking.kept) == int(0.4 * n_tokens)
    assert ranking.kept == sorted(ranking.kept)
    assert ranking.mention_scores.shape == (n_tokens, 4)
    assert torch.equal(ranking.grid, span_grid([len(s) for s in DOCUMENTS[0].sentences], 4))


@pytest.mark.parametrize("singletons", [False, True])
def test_the_loss_is_the_marginal_loss_of_the_kept_spans(singletons):
    model = build(dataclasses.replace(SMALL, singletons=singletons)).eval()
    expected = []
    for d in DOCUMENTS:
        ranking = model.rank(d)
        gold = {mention: i for i, cluster in enumerate(d.clusters) for mention in cluster}
        loss = marginal_loss(ranking.scores, torch.tensor([gold.get(mention, -1) for mention in ranking.kept]))
        if singletons:
            for t, w in ranking.grid.nonzero().tolist():
                sign = 1 if (t, t + w + 1) in gold else -1
                loss = loss - torch.nn.functional.logsigmoid(sign * ranking.mention_scores[t, w])
        expected.append(loss)
    torch.testing.assert_close(model.loss(DOCUMENTS), sum(expected) / 3)


def test_gold_mentions_wider_than_any_span_do_no_harm():
    wide = document("[1 one two three four five six] and [1 it] .")
    assert build(dataclasses.replace(SMALL, singletons=True)).loss([wide]).isfinite()


def test_size_of_pieces_changes_nothing():
    whole, pieces = build(), build()
    pieces.mentions.chunk_size = pieces.antecedents.chunk_size = 7
    pieces.load_state_dict(whole.state_dict())
    for a, b in zip(DOCUMENTS, DOCUMENTS):
        torch.testing.assert_close(whole.rank(a).scores, pieces.rank(b).scores)
    assert predict(whole, DOCUMENTS) == predict(pieces, DOCUMENTS)


def test_the_batch_changes_nothing():
    model = build().eval()
    together = model.loss(DOCUMENTS)
    torch.testing.assert_close(together, torch.stack([model.loss([d]) for d in DOCUMENTS]).mean())


def ranking_of(links, mention_scores):
    """Spans of one token each; `links` their antecedents, themselves for none."""
    n = len(links)
    scores = torch.zeros(n, n)
    for i, antecedent in enumerate(links):
        scores[i, i - antecedent] = 1.0
    grid = torch.ones(n, 1, dtype=torch.bool)
    return Ranking(grid, torch.tensor(mention_scores).unsqueeze(1), [Mention(i, i + 1) for i in range(n)], scores)


def test_clusters_follow_the_links():
    ranking = ranking_of([0, 1, 0, 1, 2, 5, 6], [1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0])
    linked = [[(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4)]]
    assert build()._clusters(ranking) == linked
    assert build(dataclasses.replace(SMALL, singletons=True))._clusters(ranking) == [*linked, [(5, 6)]]


def test_training_sees_another_piece_of_a_long_document_each_time_and_prediction_all_of_it():
    model = build(dataclasses.replace(SMALL, max_sentences=2)).train()
    pieces = [model._training_part(DOCUMENTS[0]) for _ in range(20)]
    assert {tuple(piece.sentences[0]) for piece in pieces} == {tuple(s) for s in DOCUMENTS[0].sentences[:2]}
    assert all(piece in (crop(DOCUMENTS[0], 0, 2), crop(DOCUMENTS[0], 1, 2)) for piece in pieces)
    torch.manual_seed(4)
    first = model._training_part(DOCUMENTS[0])
    torch.manual_seed(4)
    assert model._training_part(DOCUMENTS[0]) == first
    assert model.eval()._training_part(DOCUMENTS[0]) == DOCUMENTS[0]
    assert build(dataclasses.replace(SMALL, max_sentences=0)).train()._training_part(DOCUMENTS[0]) == DOCUMENTS[0]


def test_speakers_and_genre_change_the_scores():
    model = build(genres=["bn"]).eval()
    plain = DOCUMENTS[0]
    n_tokens = sum(map(len, plain.sentences))
    scores = model.rank(plain).scores
    assert not torch.equal(model.rank(plain._replace(genre="bn")).scores, scores)
    assert torch.equal(model.rank(plain._replace(genre="unseen")).scores, scores)
    assert not torch.equal(model.rank(plain._replace(speakers=["A"] * n_tokens)).scores, scores)
    assert torch.equal(model.rank(plain._replace(speakers=[""] * n_tokens)).scores, scores)


def test_who_the_speakers_are_does_not_matter():
    model = build().eval()
    n_tokens = sum(map(len, DOCUMENTS[0].sentences))
    ab = ["A"] * 6 + ["B"] * (n_tokens - 6)
    xy = [{"A": "X", "B": "Y"}[speaker] for speaker in ab]
    scores = [model.rank(DOCUMENTS[0]._replace(speakers=who)).scores for who in (ab, xy, ["A"] * n_tokens)]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])


def test_a_document_of_one_word():
    model = build()
    one = Document("d", "0", [["Anna"]], [], "", [])
    assert predict(model, [one]) == [[]]
    model.train().loss([one]).backward()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden_dim": 0}, ("hidden_dim", 0)),
        ({"dropout": 1.0}, ("dropout", 1.0)),
        ({"spans_per_token": 0.0}, ("spans_per_token", 0.0)),
        ({"max_sentences": -1}, ("max_sentences", -1)),
    ],
)
def test_settings_that_cannot_be(settings, words):
    with pytest.raises(ConfigError, match=mentions(*words)):
        CorefConfig(**settings)


def test_the_defaults_are_the_published_sizes():
    assert dataclasses.asdict(CorefConfig()) == {
        "hidden_dim": 200, "ffnn_dim": 150, "ffnn_layers": 2, "feature_dim": 20, "max_width": 10,
        "spans_per_token": 0.4, "n_antecedents": 250, "max_sentences": 50, "lexical_dropout": 0.5, "dropout": 0.2,
        "singletons": False,
    }  # fmt: skip
