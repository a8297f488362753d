"""What a run is made from, by content: the same settings with other files behind them are another run."""

from torchelmo.bilm.fingerprint import fingerprint as bilm_fingerprint
from torchelmo.bilm.model import BiLM
from torchelmo.bilm.weights import load as load_bilm
from torchelmo.files import content_hash
from torchelmo.tasks.config import TaskConfig


def fingerprint(config: TaskConfig, bilm: BiLM | None = None) -> dict[str, str]:
    """A hash of each input, by the setting that names it; of the biLM (loaded unless given) only where ELMo enters."""
    found = {"train": content_hash(config.train), "dev": content_hash(config.dev)}
    if config.words.vectors is not None:
        found["words.vectors"] = content_hash(config.words.vectors)
    if config.elmo.place != "none":
        found["elmo.model"] = bilm_fingerprint(bilm or load_bilm(config.elmo.model or None))
    return found
