"""Score tokens, words and whole sequences with a biLM, by method names that minicons has.

Scores are natural logarithms of probabilities unless `surprisal`, `prob` or `base_two` says otherwise. They are exact:
the full softmax over whole words.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from torchelmo.bilm.model import BiLM
from torchelmo.errors import ConfigError, InputError, short_repr
from torchelmo.lm.predict import Scores, contexts, language_model, scores
from torchelmo.text.characters import check_tokens
from torchelmo.text.tokenize import align, tokenizer_for

Direction = Literal["forward", "backward", "both"]
Text: TypeAlias = str | Sequence[str]
Batch: TypeAlias = str | Sequence[Text]
_DIRECTIONS = ("forward", "backward", "both")


def _mean(scores: Tensor) -> float:
    return scores.mean(0).item()


class Scorer:
    """Score text with a language model, as the scorers of minicons do.

    A batch is a list of texts, or one string. A text is a string, which is tokenized by the rules of `lang`, or a list
    of tokens, which is used unchanged. Every text is one sequence that starts from zero state.

    Args:
        model: A biLM with a softmax, or what `torchelmo.load` takes. Default: the English model in the package.
        direction: "forward" scores a token given the tokens before it, "backward" given those after it, "both" is the
            mean of the two log-probabilities.
        lang: The language whose rules tokenize strings. Default: that of the model, or else English.
        batch_tokens: About how many tokens to process at once.

    Raises:
        ConfigError: The model does not have the direction.
        InputError: The model has no softmax, or no vocabulary.

    Example:
        >>> from torchelmo.lm import Scorer
        >>> scorer = Scorer()
        >>> [tokens] = scorer.token_score("The keys are here.", surprisal=True, base_two=True)
        >>> [token for token, bits in tokens]
        ['The', 'keys', 'are', 'here', '.']
        >>> good, bad = scorer.sequence_score(["The keys are here.", "The keys is here."])
        >>> good > bad
        True
    """

    def __init__(
        self,
        model: Any = None,
        direction: Direction = "forward",
        *,
        lang: str | None = None,
        batch_tokens: int = 2048,
    ) -> None:
        from torchelmo.formats.load import load

        self.bilm: BiLM = model if isinstance(model, BiLM) else load(model)
        if direction not in _DIRECTIONS:
            raise ConfigError(f"direction: expected {', '.join(map(repr, _DIRECTIONS))}, got {direction!r}.")
        self.direction = direction
        self._directions = ("forward", "backward") if direction == "both" else (direction,)
        for one in self._directions:
            if one not in self.bilm.config.directions:
                raise ConfigError(
                    f"direction: expected {' or '.join(map(repr, self.bilm.config.directions))}, which this model has, "
                    f"got {direction!r}."
                )
        self.softmax, self.vocabulary = language_model(self.bilm)
        self.lang = lang or self.bilm.lang or "en"
        self.batch_tokens = batch_tokens

    def token_score(
        self,
        batch: Batch,
        surprisal: bool = False,
        prob: bool = False,
        base_two: bool = False,
        rank: bool = False,
        entropy: bool = False,
    ) -> list[list[tuple[Any, ...]]]:
        """Return the score of every token.

        Args:
            batch: The texts.
            surprisal: Return −log p instead of log p.
            prob: Return p instead of log p.
            base_two: Use logarithms to the base 2, so that surprisals are in bits.
            rank: Add the rank of the token among all words of the vocabulary; 1 is the most probable word.
            entropy: Add the entropy of the distribution that the token was predicted from, in nats, or in bits with
                `base_two`.

        Returns:
            For every text, a list of (token, score), with the rank and the entropy after the score if they were asked
            for. A token outside the vocabulary has the score of `<UNK>`.

        Raises:
            ConfigError: `prob` was combined with `surprisal` or `base_two`, or ranks or entropies were asked for with
                direction "both".
        """
        convert = _converter(surprisal, prob, base_two)
        if (rank or entropy) and self.direction == "both":
            raise ConfigError("rank, entropy: expected a scorer with one direction, got direction 'both'.")
        found: list[list[tuple[Any, ...]]] = []
        for one in self._scores(self._tokens(batch), rank=rank, entropy=entropy):
            columns: list[Sequence[Any]] = [one.tokens, convert(self._of_tokens(one)).tolist()]
            if rank:
                columns.append(self._without_end(one.ranks[self.direction]).tolist())
            if entropy:
                unit = math.log(2) if base_two else 1.0
                columns.append((self._without_end(one.entropies[self.direction]) / unit).tolist())
            found.append(list(zip(*columns)))
        return found

    def sequence_score(
        self,
        batch: Batch,
        reduction: Callable[[Tensor], Any] = _mean,
        base_two: bool = False,
        end_mark: bool = False,
    ) -> list[Any]:
        """Return one score for each text.

        Args:
            batch: The texts.
            reduction: A function from the log-probabilities of the tokens, a tensor (n_tokens,), to the score. The
                default is their mean; `lambda x: x.sum().item()` gives the log-probability of the text.
            base_two: Use logarithms to the base 2.
            end_mark: Count the end of the text, too: `</S>`, or `<S>` in the backward direction.
        """
        convert = _converter(base_two=base_two)
        choose = self._of_targets if end_mark else self._of_tokens
        return [reduction(convert(choose(one))) for one in self._scores(self._tokens(batch))]

    def conditional_score(
        self,
        prefix: Batch,
        stimuli: Batch,
        reduction: Callable[[Tensor], Any] = _mean,
        surprisal: bool = False,
        prob: bool = False,
        base_two: bool = False,
    ) -> list[Any]:
        """Return one score for each stimulus, given a prefix.

        Args:
            prefix: One text for each stimulus that the model reads first: the text before the stimulus. In the backward
                direction, it is the text after the stimulus.
            stimuli: The texts to score.
            reduction: As for `sequence_score`, over the tokens of the stimulus alone.
            surprisal: Pass −log p to `reduction`.
            prob: Pass p to `reduction`.
            base_two: Use logarithms to the base 2.

        Raises:
            ConfigError: The scorer has the direction "both".
            InputError: There are more or fewer prefixes than stimuli.
        """
        convert = _converter(surprisal, prob, base_two)
        if self.direction == "both":
            raise ConfigError("conditional_score: expected a scorer with one direction, got direction 'both'.")
        before, after = self._tokens(prefix), self._tokens(stimuli)
        if len(before) != len(after):
            raise InputError(
                f"conditional_score: expected one prefix for each stimulus, got {len(before)} prefixes and "
                f"{len(after)} stimuli."
            )
        forward = self.direction == "forward"
        joined = [[*a, *b] if forward else [*b, *a] for a, b in zip(before, after)]
        found = []
        for one, read in zip(self._scores(joined), before):
            of_tokens = self._of_tokens(one)
            own = of_tokens[len(read) :] if forward else of_tokens[: len(of_tokens) - len(read)]
            found.append(reduction(convert(own)))
        return found

    def word_score(
        self,
        batch: Batch,
        surprisal: bool = False,
        prob: bool = False,
        base_two: bool = False,
    ) -> list[list[tuple[str, float]]]:
        """Return the score of every word, where words are what is between spaces: "can't" and "end." are one word each.

        The log-probabilities of the tokens of a word are added. In a list, every entry is one word.
        """
        convert = _converter(surprisal, prob, base_two)
        split = [text.split() if isinstance(text, str) else list(text) for text in _as_batch(batch)]
        tokens, owners = [], []
        for words in split:
            some, owner = tokens_of_words(words, self.lang)
            tokens.append(some)
            owners.append(owner)
        found = []
        for one, words, owner in zip(self._scores(tokens), split, owners):
            sums = torch.zeros(len(words), dtype=torch.float64)
            sums.index_add_(0, torch.tensor(owner), self._of_tokens(one))
            found.append(list(zip(words, convert(sums).tolist())))
        return found

    def next_word_distribution(self, batch: Batch, surprisal: bool = False) -> Tensor:
        """Return log p of every word of the vocabulary after each text, (n_texts, n_words).

        In the backward direction it is the distribution of the word before the text.

        Raises:
            ConfigError: The scorer has the direction "both".
        """
        if self.direction == "both":
            raise ConfigError("next_word_distribution: expected a scorer with one direction, got direction 'both'.")
        rows = []
        for _, vectors in contexts(self.bilm, self._tokens(batch), batch_tokens=self.batch_tokens):
            part = getattr(vectors, self.direction)
            rows.append(part[-1 if self.direction == "forward" else 0])
        with torch.no_grad():
            log_p: Tensor = self.softmax(torch.stack(rows)).cpu()
        return -log_p if surprisal else log_p

    def topk(self, distribution: Tensor, k: int = 1) -> tuple[list[list[str]], list[list[float]]]:
        """Return the k most probable words of each row of `next_word_distribution`, and their probabilities.

        Args:
            distribution: Log-probabilities, (n_texts, n_words).
            k: The number of words.

        Example:
            >>> from torchelmo.lm import Scorer
            >>> scorer = Scorer()
            >>> words, probabilities = scorer.topk(scorer.next_word_distribution("He sat on the"), 3)
            >>> len(words[0])
            3
        """
        best = distribution.topk(min(k, distribution.shape[-1]))
        words = [[self.vocabulary[i] for i in row] for row in best.indices.tolist()]
        return words, best.values.exp().tolist()

    def _scores(self, tokens: list[list[str]], *, rank: bool = False, entropy: bool = False) -> Iterator[Scores]:
        return scores(self.bilm, tokens, batch_tokens=self.batch_tokens, rank=rank, entropy=entropy)

    def _of_targets(self, found: Scores) -> Tensor:
        """Return the log-probabilities of the tokens and the end, averaged over the directions."""
        parts = [self._end_last(getattr(found, direction), direction) for direction in self._directions]
        return torch.stack(parts).mean(0)

    def _of_tokens(self, found: Scores) -> Tensor:
        return self._of_targets(found)[:-1]

    def _without_end(self, values: Tensor) -> Tensor:
        return self._end_last(values, self.direction)[:-1]

    @staticmethod
    def _end_last(values: Tensor, direction: str) -> Tensor:
        """Return values in the order w_1 … w_n and the end; in the backward direction, the end is the first target."""
        return values if direction == "forward" else values.roll(-1)

    def _tokens(self, batch: Batch) -> list[list[str]]:
        found = []
        for i, text in enumerate(_as_batch(batch)):
            if isinstance(text, str):
                tokens = tokenizer_for(self.lang).tokens(text)
            else:
                check_tokens(text, i, expected="a string or a list of tokens")
                tokens = list(text)
            if not tokens:
                raise InputError(f"Text {i}: expected at least one token, found {short_repr(text)}. Leave it out.")
            found.append(tokens)
        return found


def tokens_of_words(words: Sequence[str], lang: str) -> tuple[list[str], list[int]]:
    """Tokenize words as one text, and return the tokens and for each of them the index of its word.

    >>> tokens_of_words(["the", "owners'", "end."], "en")
    (['the', 'owners', "'", 'end', '.'], [0, 1, 1, 2, 2])
    """
    text = " ".join(words)
    [tokens] = align([tokenizer_for(lang).tokens(text)], text)
    ends = []
    end = -1
    for word in words:
        end += len(word) + 1
        ends.append(end)
    owners = []
    index = 0
    for token in tokens:
        while token.start >= ends[index]:
            index += 1
        owners.append(index)
    return [token.text for token in tokens], owners


def _as_batch(batch: Batch) -> Sequence[Text]:
    return [batch] if isinstance(batch, str) else batch


def _converter(surprisal: bool = False, prob: bool = False, base_two: bool = False) -> Callable[[Tensor], Tensor]:
    """Return the function from natural logarithms to the wanted scores."""
    if prob and (surprisal or base_two):
        other = "surprisal" if surprisal else "base_two"
        raise ConfigError(f"prob, {other}: expected one of them, got both.")
    if prob:
        return torch.exp
    factor = (-1.0 if surprisal else 1.0) / (math.log(2) if base_two else 1.0)
    return lambda log_p: log_p * factor
