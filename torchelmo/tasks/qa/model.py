"""The QA model: BiDAF with residual self-attention (Clark & Gardner 2017).

tokens -> GRU -> attention between passage and question -> GRU -> self-attention -> start and end of the answer
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.config import Config, Fraction, PositiveInt, Width
from torchelmo.errors import InputError
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import BiRNN, VariationalDropout, masked_softmax
from torchelmo.tasks.qa.data import Question, Window
from torchelmo.tasks.task import TaskModel

_MAX_PAIRS = 45 * 400 * 400  # windows × tokens × tokens in one prediction: 29 MB for each such tensor


@dataclass(frozen=True)
class QuestionConfig(Config):
    """[model]: the defaults are those of Clark & Gardner 2017 and Peters et al. 2018."""

    hidden_dim: Width = 90  # width of each direction of each GRU
    linear_dim: Width = 180  # between the attention layers
    dropout: Fraction = 0.2  # variational, before every GRU and attention
    max_span: PositiveInt = 17  # tokens of the longest answer that is predicted
    loss: Literal["marginal", "first"] = "marginal"  # all reference answers are correct, or only the first


class PredictedAnswer(NamedTuple):
    """A predicted answer: passage.text[start_char:end_char]."""

    text: str
    start: int  # first token of the passage
    end: int  # the token after the last
    start_char: int
    end_char: int
    score: float  # probability of its start times that of its end, over all windows of the passage


class BoundaryScores(NamedTuple):
    """The scores of every token as the start and the end of the answer."""

    start: Tensor  # (batch, tokens), −∞ at padding
    end: Tensor


class QuestionAnswering(TaskModel[Question, PredictedAnswer]):
    """Score every token of a passage as the start and the end of the answer to a question."""

    def __init__(self, config: QuestionConfig, inputs: TokenInput) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        hidden, linear = config.hidden_dim, config.linear_dim
        self.dropout = VariationalDropout(config.dropout)
        self.context = BiRNN(inputs.dim, hidden, cell="gru")
        self.attention = PassageAttention(self.context.dim + inputs.output_dim)
        self.merge = nn.Linear(self.attention.dim, linear)
        self.before_self = BiRNN(linear, hidden, cell="gru")
        self.self_attention = SelfAttention(self.before_self.dim)
        self.merge_self = nn.Linear(self.self_attention.dim, linear)
        self.start_rnn = BiRNN(linear, hidden, cell="gru")
        self.start = nn.Linear(self.start_rnn.dim, 1, bias=False)  # a bias has no effect on the softmax over tokens
        self.end_rnn = BiRNN(linear + self.start_rnn.dim, hidden, cell="gru")
        self.end = nn.Linear(self.end_rnn.dim, 1, bias=False)

    def forward(self, questions: Sequence[Sequence[str]], windows: Sequence[Window]) -> BoundaryScores:
        """Score the tokens of each window as the start and the end of the answer to its question."""
        question, question_mask = self._encode(questions)
        # Questions about the same window share its encoding, which does not depend on them.
        places: dict[int, int] = {}
        rows = [places.setdefault(id(window), len(places)) for window in windows]
        distinct = list({id(window): window.tokens for window in windows}.values())
        passage, mask = self._encode(distinct)
        if len(distinct) < len(rows):
            passage, mask = passage[rows], mask[rows]

        joined = self.attention(self.dropout(passage), mask, self.dropout(question), question_mask)
        merged = torch.relu(self.merge(joined))
        inner = self.dropout(self.before_self(self.dropout(merged), mask))
        merged = merged + torch.relu(self.merge_self(self.self_attention(inner, mask)))
        started = self.start_rnn(self.dropout(merged), mask)
        ended = self.end_rnn(self.dropout(torch.cat((merged, started), dim=-1)), mask)
        return BoundaryScores(
            self.start(started).squeeze(-1).masked_fill(~mask, -torch.inf),
            self.end(ended).squeeze(-1).masked_fill(~mask, -torch.inf),
        )

    def loss(self, examples: Sequence[Question]) -> Tensor:
        scores = self([example.tokens for example in examples], [_only_window(example) for example in examples])
        starts, ends = (torch.zeros_like(scores.start, dtype=torch.bool) for _ in range(2))
        for row, example in enumerate(examples):
            for answer in (example.answers or [])[: 1 if self.config.loss == "first" else None]:
                starts[row, answer.first] = ends[row, answer.last] = True
        return (boundary_loss(scores.start, starts) + boundary_loss(scores.end, ends)).mean()

    def predict(self, examples: Sequence[Question]) -> list[PredictedAnswer]:
        pairs = [(row, window) for row, example in enumerate(examples) for window in example.passage.windows]
        spans: list[list[_Span]] = [[] for _ in examples]
        for chunk in _chunks(pairs):
            scores = self([examples[row].tokens for row, _ in chunk], [window for _, window in chunk])
            best = best_spans(scores.start, scores.end, self.config.max_span)
            columns = (*best, scores.start.logsumexp(dim=1), scores.end.logsumexp(dim=1))
            values = zip(*(column.tolist() for column in columns))
            for (row, window), (first, last, *rest) in zip(chunk, values):
                spans[row].append(_Span(window.start + first, window.start + last, *rest))
        return [_best_answer(example, found) for example, found in zip(examples, spans)]

    def _encode(self, sequences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return the states of the contextual GRU, with ELMo if it is added at the output, and the mask."""
        vectors, mask, output = self.inputs(sequences)
        states = self.context(self.dropout(vectors), mask)
        return (states if output is None else torch.cat((states, output), dim=-1)), mask


class _Span(NamedTuple):
    """The best span of a window, in tokens of its passage."""

    first: int
    last: int
    score: float
    all_starts: float  # logsumexp of the start scores of the window
    all_ends: float  # logsumexp of the end scores


def _best_answer(example: Question, spans: Sequence[_Span]) -> PredictedAnswer:
    best = max(spans, key=lambda span: span.score)
    starts, ends = (torch.tensor(sums, dtype=torch.float64) for sums in zip(*(span[3:] for span in spans)))
    score = (best.score - starts.logsumexp(dim=0) - ends.logsumexp(dim=0)).exp().item()
    offsets = example.passage.offsets
    start, end = offsets[best.first][0], offsets[best.last][1]
    return PredictedAnswer(example.passage.text[start:end], best.first, best.last + 1, start, end, score)


def _only_window(example: Question) -> Window:
    if len(example.passage.windows) != 1:
        raise InputError(
            f"Question {example.id}: expected a passage of one window to train on, "
            f"found {len(example.passage.windows)} windows. `Qa.read` makes one window."
        )
    return example.passage.windows[0]


def _chunks(pairs: Sequence[tuple[int, Window]]) -> list[list[tuple[int, Window]]]:
    """Split windows into chunks that bound the memory of self-attention."""
    chunks: list[list[tuple[int, Window]]] = []
    longest = 0
    for pair in pairs:
        longest = max(longest, len(pair[1].tokens))
        if not chunks or (len(chunks[-1]) + 1) * longest**2 > _MAX_PAIRS:
            chunks.append([])
            longest = len(pair[1].tokens)
        chunks[-1].append(pair)
    return chunks


class Trilinear(nn.Module):
    """Score pairs of vectors, w·[h; q; h⊙q]: (batch, n, dim) and (batch, m, dim) -> (batch, n, m)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        bound = (3 * dim) ** -0.5  # the initialization of nn.Linear(3 * dim, 1)
        self.left = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))
        self.right = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))
        self.product = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        # The three parts of w are applied separately, which avoids a (batch, n, m, dim) tensor of pairs. The last two
        # are one product, q·(w⊙h + w'), which leaves one addition over all pairs.
        scores = (left * self.product + self.right) @ right.transpose(1, 2)
        return scores + (left @ self.left).unsqueeze(-1)


class PassageAttention(nn.Module):
    """Attention between passage h and question q in both directions: -> [h; c; h⊙c; c⊙h̄].

    c_i is the average of q by the attention of h_i; h̄ is the average of h by the attention of q.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scores = Trilinear(dim)
        self.dim = 4 * dim

    def forward(self, passage: Tensor, passage_mask: Tensor, question: Tensor, question_mask: Tensor) -> Tensor:
        scores = self.scores(passage, question)
        weights = masked_softmax(scores, question_mask.unsqueeze(1))
        seen = weights @ question
        best = scores.masked_fill(~question_mask.unsqueeze(1), torch.finfo(scores.dtype).min).amax(dim=-1)
        summary = masked_softmax(best, passage_mask).unsqueeze(1) @ passage  # (batch, 1, dim)
        return torch.cat((passage, seen, passage * seen, seen * summary), dim=-1)


class SelfAttention(nn.Module):
    """Attention of passage h to itself, without each token itself: -> [h; c; h⊙c]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scores = Trilinear(dim)
        self.dim = 3 * dim

    def forward(self, passage: Tensor, mask: Tensor) -> Tensor:
        itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        weights = masked_softmax(self.scores(passage, passage), mask.unsqueeze(1) & ~itself)
        seen = weights @ passage
        return torch.cat((passage, seen, passage * seen), dim=-1)


class BestSpans(NamedTuple):
    """The best span of each row."""

    first: Tensor  # (batch,): token
    last: Tensor  # (batch,): token, `first` or later
    score: Tensor  # (batch,): start score of `first` + end score of `last`


def best_spans(start: Tensor, end: Tensor, max_span: int) -> BestSpans:
    """Return the spans of at most `max_span` tokens with the highest sum of scores; start and end: (batch, tokens).

    >>> best_spans(torch.tensor([[1.0, 0.0, 3.0]]), torch.tensor([[9.0, 1.0, 0.0]]), 2).first.tolist()
    [0]
    """
    # Row i holds the ends i, i + 1, …, i + max_span − 1.
    ends = F.pad(end, (0, max_span - 1), value=-torch.inf).unfold(1, max_span, 1)
    score, place = (start.unsqueeze(-1) + ends).flatten(1).max(dim=1)
    first = place // max_span
    return BestSpans(first, first + place % max_span, score)


def boundary_loss(scores: Tensor, correct: Tensor) -> Tensor:
    """Return the negative log-probability of all `correct` tokens together under the softmax of `scores`: (batch,).

    Args:
        scores: (batch, tokens), -inf at padding.
        correct: (batch, tokens) bool, with at least one true token in every row.
    """
    return scores.logsumexp(dim=1) - scores.masked_fill(~correct, -torch.inf).logsumexp(dim=1)
