"""A sentence's vectors depend on that sentence alone."""

import copy

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchelmo import BiLM, BiLMConfig, Elmo

TOLERANCE = 2e-6
SHAPE = {"filters": ((1, 3), (2, 3)), "char_dim": 3, "n_highway": 1, "projection_dim": 4, "cell_dim": 6}
FORWARD_ONLY = BiLM(BiLMConfig(**SHAPE, max_characters=12, direction="forward"))
words = st.sampled_from(["the", "bow", "and", "arrow", "a", "naïve", "日本", "incomprehensible", ""]) | st.text(
    max_size=6
)
sentences = st.lists(words, min_size=1, max_size=6)
texts = st.lists(sentences, min_size=1, max_size=4)
# The model is only read: it may be shared by all examples, and so may the way it is run.
reading = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])


def layers_of(bilm: BiLM, batch: list[list[str]], path: str, pad: int = 0) -> list[torch.Tensor]:
    """The layers of every sentence of a batch, boundaries included, with `pad` more padded positions."""
    ids = torch.nn.functional.pad(Elmo(bilm).encode(batch), (0, 0, 0, pad))
    with torch.no_grad():
        out = bilm(ids, path=path)
    return [out.layers[:, row, : len(tokens) + 2] for row, tokens in enumerate(batch)]


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)


@reading
@given(texts, st.integers(1, 5))
def test_padding_changes_nothing(tiny_bilm, path, batch, pad):
    assert_close(layers_of(tiny_bilm, batch, path, pad), layers_of(tiny_bilm, batch, path))


@reading
@given(texts, st.randoms(use_true_random=False))
def test_batch_order_changes_nothing(tiny_bilm, path, batch, random):
    order = list(range(len(batch)))
    random.shuffle(order)
    shuffled = layers_of(tiny_bilm, [batch[i] for i in order], path)
    assert_close(shuffled, [layers_of(tiny_bilm, batch, path)[i] for i in order])


@reading
@given(texts)
def test_batch_size_changes_nothing(tiny_bilm, path, batch):
    alone = [layers_of(tiny_bilm, [tokens], path)[0] for tokens in batch]
    assert_close(layers_of(tiny_bilm, batch, path), alone)


@reading
@given(texts, texts)
def test_earlier_calls_change_nothing(tiny_bilm, path, batch, earlier):
    fresh = layers_of(copy.deepcopy(tiny_bilm), batch, path)
    layers_of(tiny_bilm, earlier, path)
    assert_close(layers_of(tiny_bilm, batch, path), fresh)


@reading
@given(texts)
def test_the_paths_agree(tiny_bilm, path, batch):
    assert_close(layers_of(tiny_bilm, batch, path), layers_of(tiny_bilm, batch, "reference"))


@reading
@given(sentences, sentences, sentences)
def test_forward_vectors_know_nothing_of_later_tokens(tiny_bilm, path, start, end, other):
    one, two = layers_of(tiny_bilm, [start + end, start + other], path)
    n, half = len(start) + 1, tiny_bilm.config.projection_dim  # <S> and the shared tokens
    torch.testing.assert_close(one[:, :n, :half], two[:, :n, :half], rtol=0, atol=TOLERANCE)


@reading
@given(sentences, sentences, sentences)
def test_backward_vectors_know_nothing_of_earlier_tokens(tiny_bilm, path, end, start, other):
    one, two = layers_of(tiny_bilm, [start + end, other + end], path)
    n, half = len(end) + 1, tiny_bilm.config.projection_dim  # the shared tokens and </S>
    torch.testing.assert_close(one[:, -n:, half:], two[:, -n:, half:], rtol=0, atol=TOLERANCE)


def test_vectors_know_their_context(tiny_bilm, path):
    """The two tests above would pass for a model that looks at nothing."""
    one, two = layers_of(tiny_bilm, [["a", "bow", "tie"], ["the", "bow", "broke"]], path)
    half = tiny_bilm.config.projection_dim
    torch.testing.assert_close(one[0, 2], two[0, 2], rtol=0, atol=2e-6)  # the token layer is context-free
    for layer in (1, 2):
        assert (one[layer, 2, :half] - two[layer, 2, :half]).abs().max() > 1e-3
        assert (one[layer, 2, half:] - two[layer, 2, half:]).abs().max() > 1e-3


@reading
@given(texts, st.integers(1, 8))
def test_state_continues_where_it_was_cut(path, tune, batch, cut):
    """One running text in pieces of any length equals the text in one piece."""
    bilm = tune(FORWARD_ONLY)
    text = [token for tokens in batch for token in ["<S>", *tokens, "</S>"]]
    ids = Elmo(bilm).encode([text])
    with torch.no_grad():
        whole = bilm(ids, boundaries=False, path=path)
        state, pieces = None, []
        for start in range(0, len(text), cut):
            out = bilm(ids[:, start : start + cut], state, boundaries=False, path=path)
            state = out.state
            pieces.append(out.layers)
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole.layers, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(state.cell, whole.state.cell, rtol=0, atol=TOLERANCE)
