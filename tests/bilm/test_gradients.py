"""Gradients through every part, in float64, against finite differences."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.func import functional_call

from torchelmo import BiLM, BiLMConfig, Elmo
from torchelmo.bilm.encoder import CharCNN, WordEmbedding
from torchelmo.bilm.lstm import LSTMState, ProjectedLSTM
from torchelmo.bilm.model import BiLMState

TINY = {"char_dim": 2, "filters": ((1, 1), (2, 2)), "max_characters": 5, "projection_dim": 2, "cell_dim": 3}


def parameters_of(module: torch.nn.Module) -> tuple[list[str], list[torch.Tensor]]:
    """Names, and values that are drawn anew: those of a new model are too small to hit a clip."""
    names = [name for name, _ in module.named_parameters()]
    generator = torch.Generator().manual_seed(3)
    values = [
        torch.randn(p.shape, dtype=torch.float64, generator=generator).requires_grad_() for p in module.parameters()
    ]
    return names, values


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_character_encoder(activation):
    cnn = CharCNN(BiLMConfig(**TINY, n_highway=2, activation=activation)).double()
    names, values = parameters_of(cnn)
    values[names.index("embedding")] = torch.randn(262, 2, dtype=torch.float64)  # all rows: too many to check here
    ids = torch.tensor([[259, 98, 99, 260, 261], [259, 99, 260, 261, 261]])

    def run(*parameters: torch.Tensor) -> torch.Tensor:
        return functional_call(cnn, dict(zip(names, parameters)), (ids,))

    assert gradcheck(run, values)


def test_character_embedding():
    cnn = CharCNN(BiLMConfig(**TINY, n_highway=0)).double()
    rows = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    used = torch.tensor([98, 99, 259, 260])
    ids = torch.tensor([[259, 98, 99, 98, 260]])

    def run(rows: torch.Tensor) -> torch.Tensor:
        table = cnn.embedding.detach().index_copy(0, used, rows)
        return functional_call(cnn, {"embedding": table}, (ids,))

    assert gradcheck(run, [rows])


def test_word_embedding():
    encoder = WordEmbedding(BiLMConfig(input="words", n_words=4, projection_dim=2)).double()
    ids = torch.tensor([[1, 4, 0], [2, 2, 1]])
    assert gradcheck(
        lambda table: functional_call(encoder, {"embedding": table}, (ids,)),
        [torch.randn(4, 2, dtype=torch.float64, requires_grad=True)],
    )


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("clip", [None, 0.4])
def test_lstm(backward, clip):
    lstm = ProjectedLSTM(2, 3, 2, cell_clip=clip, projection_clip=clip, backward=backward).double()
    names, values = parameters_of(lstm)
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    state = [torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (2, 3)]
    mask = torch.tensor([[True, True, True], [True, False, False]])

    def run(x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, *parameters: torch.Tensor) -> object:
        out, end = functional_call(lstm, dict(zip(names, parameters)), (x, mask, LSTMState(hidden, cell)))
        return out, *end

    out, _, cell = run(x, *state, *values)
    if clip is not None:
        assert (out.abs() == clip).any()
        assert (cell.abs() == clip).any()
    assert gradcheck(run, [x, *state, *values], fast_mode=clip is None)


@pytest.mark.parametrize("direction", ["both", "forward", "backward"])
@pytest.mark.parametrize("words", [False, True])
def test_whole_bilm(direction, words):
    shape = {"input": "words", "n_words": 3, "projection_dim": 2, "cell_dim": 2} if words else TINY
    bilm = BiLM(BiLMConfig(**shape, n_highway=1, n_layers=2, direction=direction, cell_clip=0.7)).double()
    names, values = parameters_of(bilm)
    if not words:
        names, values = names[1:], values[1:]  # the character table has a test of its own
    ids = torch.tensor([[1, 2], [3, 0]])
    if not words:
        ids = torch.zeros(2, 2, 5, dtype=torch.int64)
        ids[0, 0] = torch.tensor([259, 98, 99, 260, 261])
        ids[0, 1] = ids[1, 0] = torch.tensor([259, 99, 260, 261, 261])
    state = [torch.randn_like(part).requires_grad_() for part in bilm.zero_state(2)]

    def run(hidden: torch.Tensor, cell: torch.Tensor, *parameters: torch.Tensor) -> object:
        out = functional_call(bilm, dict(zip(names, parameters)), (ids, BiLMState(hidden, cell)))
        return out.layers, *out.state

    assert gradcheck(run, [*state, *values], fast_mode=True)  # along random directions: there are many values


def test_every_parameter_of_an_unfrozen_elmo_gets_a_gradient():
    config = BiLMConfig(**TINY)
    elmo = Elmo(BiLM(config), freeze=False, n_mixes=2)
    mixes, _ = elmo(elmo.encode([["bow", "and"], ["arrow"]]))
    sum(mix.square().sum() for mix in mixes).backward()
    without = [name for name, p in elmo.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == []


def test_auto_takes_the_path_with_gradients_only_where_they_are_wanted():
    bilm = BiLM(BiLMConfig(**TINY))
    ids = Elmo(bilm, freeze=False).encode([["bow"]])
    assert bilm(ids).layers.requires_grad
    with torch.no_grad():
        assert not bilm(ids).layers.requires_grad
    bilm.requires_grad_(False)
    assert not bilm(ids).layers.requires_grad
