"""BiDAF with residual self-attention (Clark & Gardner 2017): where in a passage does the answer start and end?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.config import require_positive, require_share
from torchelmo.errors import InputError
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import VariationalDropout, lengths_mask, masked_softmax
from torchelmo.tasks.layers.rnn import BiRNN
from torchelmo.tasks.qa.data import Question, Window
from torchelmo.tasks.task import TaskModel


class Trilinear(nn.Module):
    """(batch, n, dim) and (batch, m, dim) -> scores (batch, n, m)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        bound = (3 * dim) ** -0.5  # as nn.Linear(3 * dim, 1) begins
        self.left = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))
        self.right = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))
        self.product = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        # The three parts of w apart, so that no (batch, n, m, dim) tensor of pairs is ever made. q·(w⊙h) + w·q is
        # q·(w⊙h + w'), which leaves one addition over all pairs.
        scores = (left * self.product + self.right) @ right.transpose(1, 2)
        return scores + (left @ self.left).unsqueeze(-1)


class PassageAttention(nn.Module):
    """Passage h and question q, both ways: -> [h; c; h⊙c; c⊙h̄], c what each h_i sees of q, h̄ what q sees of h."""

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
    """Passage h with itself, no token with its own place: -> [h; c; h⊙c]."""

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
    first: Tensor  # (batch,): token
    last: Tensor  # (batch,): token, `first` or later
    score: Tensor  # (batch,): start score of `first` + end score of `last`


def best_spans(start: Tensor, end: Tensor, max_span: int) -> BestSpans:
    """The span of at most `max_span` tokens with the highest sum of scores; start and end (batch, tokens).

    >>> best_spans(torch.tensor([[1.0, 0.0, 3.0]]), torch.tensor([[9.0, 1.0, 0.0]]), 2).first.tolist()
    [0]
    """
    # Row i holds the ends i, i + 1, …, i + max_span − 1.
    ends = F.pad(end, (0, max_span - 1), value=-torch.inf).unfold(1, max_span, 1)
    score, place = (start.unsqueeze(-1) + ends).flatten(1).max(dim=1)
    first = place // max_span
    return BestSpans(first, first + place % max_span, score)


def boundary_loss(scores: Tensor, right: Tensor) -> Tensor:
    """−log of the probability that the softmax of `scores` gives to the `right` (bool) tokens together: (batch,).

    Scores are −∞ at padding; every row has a right token.
    """
    return scores.logsumexp(dim=1) - scores.masked_fill(~right, -torch.inf).logsumexp(dim=1)


_MOST_PAIRS = 45 * 400 * 400  # windows × tokens × tokens that are predicted at once: 29 MB for each such tensor


@dataclass(frozen=True)
class QuestionConfig:
    """[model]. The defaults are those of Clark & Gardner, with ELMo as Peters et al. 2018 used them."""

    hidden_dim: int = 90  # of each direction of each GRU
    linear_dim: int = 180  # between the attention layers
    dropout: float = 0.2  # variational, before every GRU and attention
    max_span: int = 17  # tokens of the longest answer that is predicted
    loss: Literal["marginal", "first"] = "marginal"  # any of the reference answers is right, or the first alone

    def __post_init__(self) -> None:
        require_positive(self, "hidden_dim", "linear_dim", "max_span")
        require_share(self, "dropout")


class Found(NamedTuple):
    """A predicted answer: passage.text[start:end]."""

    text: str
    start: int
    end: int
    score: float  # probability of its start times that of its end, among those of all windows of the passage


class BoundaryScores(NamedTuple):
    start: Tensor  # (batch, tokens), −∞ at padding
    end: Tensor


class QuestionAnswering(TaskModel[Question, Found]):
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
        self.start = nn.Linear(self.start_rnn.dim, 1, bias=False)  # a bias would be lost in the softmax over tokens
        self.end_rnn = BiRNN(linear + self.start_rnn.dim, hidden, cell="gru")
        self.end = nn.Linear(self.end_rnn.dim, 1, bias=False)

    def forward(self, questions: Sequence[Sequence[str]], windows: Sequence[Window]) -> BoundaryScores:
        """The scores of each window's tokens as the start and the end of the answer to the question beside it."""
        question, question_mask = self._encode([[question] for question in questions])
        # Questions that share a window share its encoding: it does not depend on them.
        places: dict[int, int] = {}
        rows = [places.setdefault(id(window), len(places)) for window in windows]
        distinct = list({id(window): window.sentences for window in windows}.values())
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

    def predict(self, examples: Sequence[Question]) -> list[Found]:
        pairs = [(row, window) for row, example in enumerate(examples) for window in example.passage.windows]
        spans: list[list[_Span]] = [[] for _ in examples]
        for chunk in _chunks(pairs):
            scores = self([examples[row].tokens for row, _ in chunk], [window for _, window in chunk])
            best = best_spans(scores.start, scores.end, self.config.max_span)
            columns = (*best, scores.start.logsumexp(dim=1), scores.end.logsumexp(dim=1))
            values = zip(*(column.tolist() for column in columns))
            for (row, window), (first, last, *rest) in zip(chunk, values):
                spans[row].append(_Span(window.start + first, window.start + last, *rest))
        return [_found(example, found) for example, found in zip(examples, spans)]

    def _encode(self, groups: Sequence[Sequence[Sequence[str]]]) -> tuple[Tensor, Tensor]:
        """The sentences of each group in a row, through the contextual GRU: (n_groups, tokens, …) and its mask."""
        tokens = self.inputs([sentence for group in groups for sentence in group])
        lengths = [sum(map(len, group)) for group in groups]
        mask = lengths_mask(lengths, device=tokens.mask.device)
        vectors = self.context(self.dropout(_regroup(tokens.vectors, tokens.mask, mask)), mask)
        if tokens.output is None:
            return vectors, mask
        return torch.cat((vectors, _regroup(tokens.output, tokens.mask, mask)), dim=-1), mask


class _Span(NamedTuple):
    """The best span of a window, in tokens of its passage."""

    first: int
    last: int
    score: float
    all_starts: float  # log of the sum of exp(score) over the window's tokens
    all_ends: float


def _found(example: Question, spans: Sequence[_Span]) -> Found:
    best = max(spans, key=lambda span: span.score)
    starts, ends = (torch.tensor(sums, dtype=torch.float64) for sums in zip(*(span[3:] for span in spans)))
    score = (best.score - starts.logsumexp(dim=0) - ends.logsumexp(dim=0)).exp().item()
    offsets = example.passage.offsets
    start, end = offsets[best.first][0], offsets[best.last][1]
    return Found(example.passage.text[start:end], start, end, score)


def _only_window(example: Question) -> Window:
    if len(example.passage.windows) != 1:
        raise InputError(
            f"Question {example.id}: expected a passage in one piece to train on, found {len(example.passage.windows)} "
            "windows. Read training data without them."
        )
    return example.passage.windows[0]


def _regroup(vectors: Tensor, mask: Tensor, target: Tensor) -> Tensor:
    """Move the real tokens of `vectors` (rows by sentence) to the real places of `target` (rows by group)."""
    if mask.shape == target.shape and bool((mask == target).all()):
        return vectors
    result = vectors.new_zeros(*target.shape, vectors.shape[-1])
    result[target] = vectors[mask]
    return result


def _chunks(pairs: Sequence[tuple[int, Window]]) -> list[list[tuple[int, Window]]]:
    """Cut where the attention of passages to themselves would take too much memory."""
    chunks: list[list[tuple[int, Window]]] = []
    longest = 0
    for pair in pairs:
        longest = max(longest, pair[1].n_tokens)
        if not chunks or (len(chunks[-1]) + 1) * longest**2 > _MOST_PAIRS:
            chunks.append([])
            longest = pair[1].n_tokens
        chunks[-1].append(pair)
    return chunks
