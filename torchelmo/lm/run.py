"""A training run put together: data, model, optimiser, and where it stands. `loop.train` moves it on."""

import hashlib
import json
import logging
import math
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.model import BiLM, BiLMState
from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import ConfigError, OutputExistsError
from torchelmo.files import os_errors_as_output_error
from torchelmo.formats.load import build_folder, load
from torchelmo.lm.config import PretrainConfig, first_difference
from torchelmo.lm.corpus import BEGIN_ID, Corpus
from torchelmo.lm.losses import LOSSES, Batch, Negatives, Objective, Sampler, touched_rows
from torchelmo.lm.stream import Stream, Window
from torchelmo.runs import checkpoint as files
from torchelmo.runs.checkpoint import Checkpoint, Progress
from torchelmo.runs.distributed import World, parallel
from torchelmo.runs.optim import build_optimizer, learning_rate, optimizer_tensors, restore_optimizer
from torchelmo.runtime import step_seed
from torchelmo.text.vocabulary import Vocabulary


def build_model(config: PretrainConfig, corpus: Corpus) -> BiLM:
    """[model] with random weights, or the model that `init` names; the softmax is over the data's words."""
    vocabulary = corpus.vocabulary
    torch.manual_seed(step_seed(config.seed, 0, 0, "weights"))
    if config.init is None:
        bilm, new_softmax = BiLM(config.model_config(len(vocabulary)), vocabulary), True
        bilm.origin = f"trained on {config.data.name}"
    else:
        given = load(config.init)
        bilm = with_softmax(given, vocabulary, where=str(config.init))
        new_softmax = bilm is not given
        for parameter in bilm.parameters():
            # A tensor of a mapped file may start anywhere, which is seen in the last digits of a product; its copy
            # stands where that of a resumed run will.
            parameter.data = parameter.data.clone()
    if config.unigram_bias and new_softmax and bilm.softmax is not None:
        bilm.softmax.start_from_counts(torch.from_numpy(corpus.target_counts))
    return bilm


def with_softmax(bilm: BiLM, vocabulary: Vocabulary, where: str = "model") -> BiLM:
    """`bilm` itself if its softmax is over these words; with a new softmax if it has none."""
    if bilm.config.softmax_words:
        if bilm.vocabulary != vocabulary:
            raise ConfigError(
                f"{where}: its softmax has {bilm.config.softmax_words} words of its own, and the data was "
                f"prepared with {len(vocabulary)} others. Prepare the text with the model's vocab.txt."
            )
        return bilm
    if bilm.config.input == "words" and bilm.vocabulary != vocabulary:
        raise ConfigError(
            f"{where}: reads {bilm.config.n_words} words of its own, and the data was prepared with others. "
            "Prepare the text with the model's vocab.txt."
        )
    config: BiLMConfig = replace(bilm.config, softmax_words=len(vocabulary))
    new = BiLM(config, vocabulary)
    with torch.no_grad():
        for name, tensor in bilm.own_tensors().items():
            new.get_parameter(name).copy_(tensor)
    new.origin, new.official_options = bilm.origin, bilm.official_options
    return new


log = logging.getLogger(__name__)


class Run:
    """Built the same way on every rank; nothing is written before `save`.

    `saved` is a checkpoint that the run is then restored from; `init`, where it began, may be gone by then.
    """

    def __init__(self, config: PretrainConfig, world: World | None = None, saved: Path | None = None) -> None:
        self.config = config
        self.world = world = world or World()
        if config.threads:
            torch.set_num_threads(config.threads)
        self.corpus = Corpus.open(config.data)
        if config.batch_size % world.size:
            raise ConfigError(
                f"batch_size counts the rows of all ranks together: expected a multiple of {world.size}, "
                f"the number of ranks, got {config.batch_size}."
            )
        if config.precision == "bfloat16" and world.device.type != "cuda":
            raise ConfigError(f"precision = 'bfloat16' needs a CUDA device, this one is {world.device.type!r}.")
        self.stream = Stream(
            self.corpus,
            batch_size=config.batch_size // world.size,
            unroll=config.unroll,
            seed=config.seed,
            rank=world.rank,
            n_ranks=world.size,
        )
        self.windows: Iterator[Window] = iter(self.stream)
        bilm = build_model(config, self.corpus) if saved is None else build_folder(saved)
        self.bilm = bilm.to(world.device)
        trained = {
            name: parameter
            for name, parameter in self.bilm.named_parameters()
            if config.trained == "all" or name.startswith("softmax.")
        }
        for parameter in self.bilm.parameters():
            parameter.requires_grad_(any(parameter is other for other in trained.values()))
        self.names, self.parameters = list(trained), list(trained.values())
        self.optimizer = build_optimizer(config.optim, self.parameters)
        self.sampler: Sampler | None = None
        if config.loss == "sampled":
            self.sampler = Sampler(len(self.corpus.vocabulary), config.negatives)
        self.apart: list[nn.Parameter] = []  # the parameters whose touched rows alone travel between ranks
        if self.sampler is not None and self.bilm.softmax is not None:
            self.apart = [self.bilm.softmax.weight, self.bilm.softmax.bias]
        self.objective = parallel(
            Objective(
                self.bilm,
                LOSSES[config.loss],
                self._characters(),
                dropout=config.dropout,
                bfloat16=config.precision == "bfloat16",
            ),
            world,
            apart=self.apart,
        )
        self.state: BiLMState = self.bilm.zero_state(self.stream.batch_size)
        self.progress = Progress()

    @property
    def n_steps(self) -> int | None:
        """The last step of the run; None where the clock decides."""
        if self.config.epochs is not None:
            return max(1, math.ceil(self.config.epochs * self.stream.windows_per_epoch))
        return self.config.steps

    @property
    def steps(self) -> range:
        """The steps that are still to be taken."""
        return range(self.progress.step + 1, (self.n_steps or sys.maxsize - 1) + 1)

    @property
    def tokens_per_step(self) -> int:
        return self.stream.tokens_per_window

    def share_done(self, step: int, seconds: float) -> float:
        """Of the whole run, after `step` steps and `seconds` of training."""
        if self.config.hours is not None:
            return seconds / (self.config.hours * 3600.0)
        assert self.n_steps is not None
        return step / self.n_steps

    def is_over(self, progress: Progress) -> bool:
        """Whether the run has its length, or has not become better for as long as it may."""
        tired = 0 < self.config.patience <= progress.stale
        return tired or self.share_done(progress.step, progress.seconds) >= 1.0

    def learning_rate(self, step: int, seconds: float) -> float:
        # By the clock, a step takes as long as those before it did, and the first, for want of them, a second: were it
        # nothing, a warm-up would begin with a step that is not taken.
        pace = seconds / (step - 1) if step > 1 else 1.0
        before, after = self.share_done(step - 1, seconds), self.share_done(step, seconds + pace)
        return learning_rate(self.config.optim, step=step, before=before, after=after)

    def next_batch(self) -> Batch:
        """The next window of the stream, on the device, as the model reads it."""
        window, directions = next(self.windows), self.bilm.config.directions
        reads_words = self.bilm.config.input == "words"

        def ids(array: object, direction: str) -> Tensor | None:
            return torch.as_tensor(array).to(self.world.device) if direction in directions else None

        forward, backward = (
            self.corpus.targets(array) + 1 if reads_words else array for array in (window.forward, window.backward)
        )
        return Batch(
            ids(forward, "forward"),
            ids(window.forward_targets, "forward"),
            ids(backward, "backward"),
            ids(window.backward_targets, "backward"),
            torch.from_numpy(window.forward[:, 0] == BEGIN_ID).to(self.world.device),
        )

    def state_before(self, batch: Batch) -> BiLMState:
        """What the rows carry from the window before; from zero where a new sentence may start from zero."""
        if not self.config.reset_state:
            return self.state
        begins = batch.begins.view(1, 1, -1, 1)
        return BiLMState(*(part.masked_fill(begins, 0.0) for part in self.state))

    def draw(self, step: int) -> Negatives | None:
        """The negatives of a step: the same on all ranks, and again the same in a resumed run.

        Dropout's random numbers are set on their way, too, but differ between the ranks.
        """
        if self.config.dropout:
            torch.manual_seed(step_seed(self.config.seed, step, 0, f"rank {self.world.rank}"))
        if self.sampler is None:
            return None
        generator = torch.Generator().manual_seed(step_seed(self.config.seed, step, 0, "negatives"))
        return self.sampler.draw(generator)

    def average_softmax(self, batch: Batch, negatives: Negatives | None) -> None:
        """Average the rows of the softmax gradient that any rank touched in this step."""
        if self.world.size == 1 or negatives is None:
            return
        rows = [touched_rows(self.world.gather(batch.targets(), dim=0), negatives)]
        if self.bilm.config.tied_softmax:
            rows.append(self.world.gather(batch.inputs() - 1, dim=0))
        touched = torch.unique(torch.cat(rows))
        for parameter in self.apart:
            self.world.average_rows(parameter.grad, touched)

    def save(self, progress: Progress) -> Path:
        """A checkpoint by rank 0 of what all ranks hold; every rank must call it."""
        state = BiLMState(*(self.world.gather(part, dim=2) for part in self.state))
        self.progress = progress._replace(position=self.stream.position, threads=torch.get_num_threads())
        folder = files.folder_of(self.config.out, progress.step)
        if self.world.rank == 0:
            files.save_checkpoint(
                self.config.out,
                self.bilm,
                progress=self.progress,
                settings=config_to_dict(self.config),
                data=fingerprint(self.corpus),
                optimizer=optimizer_tensors(self.optimizer, self.names),
                state=state,
                keep=self.config.keep,
            )
        return folder

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from `checkpoint`, which must be of a run with the same settings and data."""
        where = str(checkpoint.folder)
        before = build_config(PretrainConfig, checkpoint.settings, where)
        difference = first_difference(before, self.config)
        if difference is not None:
            raise ConfigError(
                f"{where}: this run cannot be resumed with other settings: {difference}. Set it back, or "
                "start a new run with another out (and init, to begin with these weights)."
            )
        if checkpoint.data != fingerprint(self.corpus):
            raise ConfigError(
                f"{where}: expected the prepared text that this run began with, but {self.config.data} holds "
                "another. Set data back, or start a new run with another out."
            )
        self.progress = checkpoint.progress
        if self.progress.threads != torch.get_num_threads():
            log.warning(
                "this run had %d threads, now %d: it goes on, but not to the last bit as it would have",
                self.progress.threads,
                torch.get_num_threads(),
            )
        files.restore_weights(self.bilm, checkpoint.folder)
        restore_optimizer(self.optimizer, self.names, checkpoint.optimizer, where)
        self.stream.seek(self.progress.position)
        parts = (self.world.share(part, dim=2).to(self.world.device).clone() for part in checkpoint.state)
        self.state = BiLMState(*parts)

    def _characters(self) -> Tensor | None:
        if self.bilm.config.input == "words":
            return None
        width, expected = self.corpus.characters.shape[1], self.bilm.config.max_characters
        if width != expected:
            raise ConfigError(
                f"{self.config.data}: was prepared with {width} characters per word, the model reads "
                f"{expected}. Prepare the text again with --max-characters {expected}."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the file is mapped for reading, and is only read
            return torch.from_numpy(self.corpus.characters).to(self.world.device)


def open_run(config: PretrainConfig, world: World, *, resume: bool = False, overwrite: bool = False) -> Run:
    """A run that may write to `config.out`: new, or where the last checkpoint there left it."""
    out = config.out
    if not resume and not overwrite and files.has_run(out):
        raise OutputExistsError(
            f"{out}: holds a run or a model already. Go on with it (--resume), replace it (--overwrite), or "
            "choose another out."
        )
    saved = files.checkpoints(out) if resume else []
    run = Run(config, world, saved[-1] if saved else None)
    world.wait()  # all ranks have looked before rank 0 writes
    if world.rank == 0:
        with os_errors_as_output_error(out):
            out.mkdir(parents=True, exist_ok=True)
            files.clean(out)
            if not resume:
                files.remove_run(out)
    if resume:
        if saved:
            run.restore(files.read_checkpoint(saved[-1]))
            if world.rank == 0:
                files.publish(saved[-1], out)
            log.info("going on after step %d", run.progress.step)
        else:
            log.info("%s: no checkpoint yet, starting at the beginning", out)
        if world.total([float(run.progress.step)]) != [float(run.progress.step * world.size)]:
            raise ConfigError(
                f"{out}: expected the same last checkpoint on all ranks, but they see different ones. "
                "Put out on a file system that all machines share."
            )
    return run


def fingerprint(corpus: Corpus) -> str:
    """Tells prepared texts apart."""
    return hashlib.sha256(json.dumps(corpus.card, sort_keys=True).encode()).hexdigest()
