"""What BiLM takes and refuses, beyond the numbers."""

import copy
import io

import pytest
import torch
from facts import mentions
from official_files import WORDS, random_official

from torchelmo import BiLM, BiLMConfig, Elmo
from torchelmo.bilm.model import BiLMState
from torchelmo.errors import ConfigError, InputError
from torchelmo.text.vocabulary import Vocabulary

SENTENCES = [["I", "took", "a", "bow"], ["bow"]]


@pytest.fixture
def ids(tiny_bilm) -> torch.Tensor:
    return Elmo(tiny_bilm).encode(SENTENCES)


def test_shapes(tiny_bilm, ids, path):
    out = tiny_bilm(ids, path=path)
    assert out.layers.shape == (3, 2, 6, 16)
    assert out.mask.tolist() == [[True] * 6, [True] * 3 + [False] * 3]
    assert out.state.hidden.shape == (2, 2, 2, 8)
    assert out.state.cell.shape == (2, 2, 2, 16)


def test_the_token_layer_is_doubled(tiny_bilm, ids):
    token_layer = tiny_bilm(ids).layers[0]
    assert torch.equal(token_layer[..., :8], token_layer[..., 8:])


def test_zero_state_is_no_state(tiny_bilm, ids, path):
    torch.testing.assert_close(
        tiny_bilm(ids, tiny_bilm.zero_state(2), path=path).layers, tiny_bilm(ids, path=path).layers, rtol=0, atol=2e-6
    )


def test_a_given_state_is_left_as_it_was(tiny_bilm, ids, path):
    with torch.no_grad():
        state = tiny_bilm(ids, path=path).state
        before = copy.deepcopy(state)
        tiny_bilm(ids, state, path=path)
    assert torch.equal(state.hidden, before.hidden)
    assert torch.equal(state.cell, before.cell)


def test_the_ids_are_left_as_they_were(tiny_bilm, ids, path):
    before = ids.clone()
    tiny_bilm(ids, path=path)
    assert torch.equal(ids, before)


def test_int32_ids(tiny_bilm, ids, path):
    torch.testing.assert_close(
        tiny_bilm(ids.int(), path=path).layers, tiny_bilm(ids, path=path).layers, rtol=0, atol=2e-6
    )


def test_auto_is_one_of_the_paths(tiny_bilm, ids):
    with torch.no_grad():
        torch.testing.assert_close(tiny_bilm(ids).layers, tiny_bilm(ids, path="fast").layers, rtol=0, atol=2e-6)


def test_two_threads(tiny_bilm, ids, path):
    expected = tiny_bilm(ids, path=path).layers.detach()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.testing.assert_close(tiny_bilm(ids, path=path).layers.detach(), expected, rtol=0, atol=2e-6)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda ids: ids[0], ["(batch, tokens, 12)", (4, 12)]),
        (lambda ids: ids[..., :11], ["(batch, tokens, 12)", (2, 4, 11)]),
        (lambda ids: ids[None], ["(batch, tokens, 12)", (1, 2, 4, 12)]),
        (lambda ids: ids.float(), ["int64", "torch.float32", "Elmo.encode"]),
        (lambda ids: ids > 0, ["int64", "torch.bool"]),
        (lambda ids: ids + 1, [0, 261, 1, 262]),
        (lambda ids: ids - 1, [0, 261, -1, 260]),
        (lambda ids: ids.flip(1), ["padding", "id 0"]),
    ],
)
def test_wrong_ids(change, facts, tiny_bilm, ids):
    with pytest.raises(InputError, match=mentions(*facts)):
        tiny_bilm(change(ids))


def test_ids_that_are_no_tensor(tiny_bilm, ids):
    with pytest.raises(InputError, match=mentions("(batch, tokens, 12)", "ndarray")):
        tiny_bilm(ids.numpy())


def test_an_unknown_path(tiny_bilm, ids):
    with pytest.raises(ConfigError, match=mentions("path", "'auto'", "'reference'", "'fast'", "'packed'")):
        tiny_bilm(ids, path="packed")


def test_a_state_that_is_none(tiny_bilm, ids, path):
    with pytest.raises(InputError, match=mentions("BiLMState", "tuple")):
        tiny_bilm(ids, tuple(tiny_bilm.zero_state(2)), path=path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_precisions(dtype, tiny_bilm, ids, path):
    with torch.no_grad():
        expected = tiny_bilm(ids, path=path).layers
        out = copy.deepcopy(tiny_bilm).to(dtype)(ids, path=path)
    assert out.layers.dtype == dtype
    torch.testing.assert_close(out.layers.float(), expected, rtol=0, atol=0.2)


def test_autocast(tiny_bilm, ids, path):
    with torch.no_grad():
        expected = tiny_bilm(ids, path=path).layers
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = tiny_bilm(ids, path=path)
    torch.testing.assert_close(out.layers.float(), expected, rtol=0, atol=2e-6 if path == "fast" else 0.2)


def test_wrong_word_ids(load_random):
    bilm = load_random(random_official(words=len(WORDS)))
    with pytest.raises(InputError, match=mentions("(batch, tokens)", (2, 3, 4))):
        bilm(torch.zeros(2, 3, 4, dtype=torch.int64))
    with pytest.raises(InputError, match=mentions(0, 8, 9)):
        bilm(torch.tensor([[9]]))


@pytest.mark.parametrize("name", ["hidden", "cell"])
def test_a_state_of_another_batch(name, tiny_bilm, ids, path):
    state = tiny_bilm.zero_state(2)
    state = state._replace(**{name: getattr(state, name)[:, :, :1]})
    with pytest.raises(InputError, match=mentions(f"state.{name}", "(2, 2, 2, ", "(2, 2, 1, ")):
        tiny_bilm(ids, state, path=path)


def test_a_vocabulary_of_another_size():
    config = BiLMConfig(input="words", n_words=9, projection_dim=2, cell_dim=2)
    with pytest.raises(InputError, match=mentions("vocabulary", 9, 8)):
        BiLM(config, Vocabulary(WORDS))


def test_words_without_a_vocabulary_have_the_marks_first(path, tune):
    bilm = tune(BiLM(BiLMConfig(input="words", n_words=5, projection_dim=2, cell_dim=3)))
    out = bilm(torch.tensor([[4, 5], [3, 0]]), path=path)
    table = bilm.encoder.embedding
    assert torch.equal(out.layers[0, 0, :, :2], table[[0, 3, 4, 1]])
    assert torch.equal(out.layers[0, 1, :3, :2], table[[0, 2, 1]])


def test_copies(tiny_bilm, ids, path):
    expected = tiny_bilm(ids, path=path).layers
    torch.testing.assert_close(copy.deepcopy(tiny_bilm)(ids, path=path).layers, expected, rtol=0, atol=2e-6)
    file = io.BytesIO()
    torch.save(tiny_bilm, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(ids, path=path).layers, expected, rtol=0, atol=2e-6)


def test_a_state_can_be_moved_and_sliced(tiny_bilm, ids, path):
    """Rows of a batch are independent: a state may be cut into its rows and joined again."""
    state = tiny_bilm(ids, path=path).state
    whole = tiny_bilm(ids, state, path=path).layers
    row = BiLMState(state.hidden[:, :, 1:], state.cell[:, :, 1:])
    alone = tiny_bilm(ids[1:, :1], row, path=path).layers
    torch.testing.assert_close(alone[:, 0], whole[:, 1, :3], rtol=0, atol=2e-6)


def test_new_models_differ_and_seeds_repeat():
    config = BiLMConfig(filters=((1, 4),), projection_dim=4, cell_dim=4)
    torch.manual_seed(1)
    one, two = BiLM(config), BiLM(config)
    torch.manual_seed(1)
    again = BiLM(config)
    assert not torch.equal(one.encoder.embedding, two.encoder.embedding)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters()))
    assert all(torch.isfinite(p).all() for p in one.parameters())
    assert not one.encoder.embedding[0].any()


def test_a_fused_optimizer_is_noticed_by_the_fast_path(tiny_bilm):
    """It writes to the weights without raising their version."""
    tiny_bilm = copy.deepcopy(tiny_bilm)
    ids = Elmo(tiny_bilm, freeze=False).encode([["a", "bow"]])
    with torch.no_grad():
        before = tiny_bilm(ids).layers
    optimizer = torch.optim.AdamW(tiny_bilm.parameters(), lr=0.1, fused=True)
    tiny_bilm(ids).layers.square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        after, plain = tiny_bilm(ids).layers, tiny_bilm(ids, path="reference").layers
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, plain)
