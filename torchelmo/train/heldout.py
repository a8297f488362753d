"""Held-out perplexity during a run: always on the same sentences, shared out to the ranks, and the best model kept."""

import logging
import math
from collections.abc import Iterator
from typing import NamedTuple

from torchelmo.train.checkpoint import Progress
from torchelmo.train.corpus import Corpus
from torchelmo.train.evaluate import perplexity
from torchelmo.train.run import Run

log = logging.getLogger(__name__)


class Result(NamedTuple):
    """Exact perplexities; None for a direction that the model lacks."""

    forward: float | None
    backward: float | None
    average: float


class HeldOut:
    """About `evaluate_tokens` tokens of the held-out part; nothing where the text has no such part."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.sentences: list[list[str]] = []
        if run.corpus.has_part("heldout"):
            corpus = Corpus.open(run.config.data, "heldout")
            self.sentences = list(spread(corpus, run.config.evaluate_tokens))
        else:
            log.info("%s has no held-out part: perplexity is not measured on the way", run.config.data)

    def measure(self) -> Result | None:
        """The same result on every rank."""
        if not self.sentences:
            return None
        world, directions = self.run.world, self.run.bilm.config.directions
        losses, n_targets = [0.0] * len(directions), 0
        if mine := self.sentences[world.rank :: world.size]:
            found = perplexity(self.run.bilm, mine)
            losses, n_targets = [found.loss(direction) for direction in directions], found.n_targets
        *losses, n_all = world.total([*losses, n_targets])
        each = {direction: math.exp(loss / n_all) for direction, loss in zip(directions, losses)}
        return Result(each.get("forward"), each.get("backward"), sum(each.values()) / len(each))

    def keep_best(self, result: Result | None, progress: Progress) -> Progress:
        """Save the model to out/best if none before was better; count the evaluations since the best."""
        if result is None:
            return progress
        if progress.best is not None and result.average >= progress.best:
            return progress._replace(stale=progress.stale + 1)
        if self.run.world.rank == 0:
            self.run.bilm.save(self.run.config.out / "best")
        return progress._replace(best=result.average, best_step=progress.step, stale=0)


def spread(corpus: Corpus, n_tokens: int) -> Iterator[list[str]]:
    """Sentences of about `n_tokens` tokens in all, as far apart as can be: each source has its share."""
    share = min(1.0, n_tokens / corpus.n_tokens)
    for i in range(corpus.n_sentences):
        if math.floor(i * share) > math.floor((i - 1) * share):
            yield corpus.sentence(i)
