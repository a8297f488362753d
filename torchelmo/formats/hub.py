"""Share models on the Hugging Face hub: download, upload, and the model card. Needs the extra "hub"."""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchelmo.bilm.model import BiLM
from torchelmo.errors import ConfigError, MissingFileError, OutputError, TorchelmoError, missing_package
from torchelmo.files import atomic_write, read_bounded, read_json

# The files of all formats that `load` reads.
_PATTERNS = (
    "*.json *.safetensors *.hdf5 *.h5 *vocab*.txt* README.md checkpoint *.index *.data-* *.pkl *.dic *.th".split()
)
_CARD_KEYS = ("language", "license", "datasets", "tags")
_MAX_CURVE = 20  # rows of the learning curve


def download(
    name: str,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
) -> Path:
    """Download a model from the Hugging Face hub, unless it is in the cache.

    Args:
        name: "owner/name" or "owner/name@revision", also after "hf://".
        revision: A branch, a tag or a commit; default: that of the name, or the main branch.
        token: The access token; default: that of `hf auth login`.
        cache_dir: The folder of downloaded models; default: that of huggingface_hub.
        local_files_only: Use only files that were downloaded before.
        force_download: Download the files again.

    Returns:
        The folder with the files.

    Raises:
        MissingFileError: The package huggingface_hub is missing, there is no such model, or the hub cannot be reached.
    """
    repo, _, named = re.sub("^hf:/+", "", name).partition("@")
    command = f"hf download {repo}" + (f" --revision {revision or named}" if revision or named else "")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingFileError(
            f"{name}: expected a model folder, found no such folder. If it is a model on the Hugging Face hub, run "
            f"pip install 'torchelmo[hub]', or download it elsewhere with `{command}` and load its folder."
        ) from None
    try:
        folder = snapshot_download(
            repo,
            revision=revision or named or None,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            force_download=force_download,
            allow_patterns=_PATTERNS,
            library_name="torchelmo",
        )
    except Exception as error:  # of huggingface_hub, of httpx, and of the operating system
        raise MissingFileError(
            f"{name}: expected a model folder, found no such folder; and the model of this name could not be "
            f"downloaded from the Hugging Face hub ({_first_line(error)}). Check the name, or download it on a machine "
            f"with a connection (`{command}`) and load its folder."
        ) from error
    return Path(str(folder))


def save_pretrained(
    bilm: BiLM,
    save_directory: str | Path,
    *,
    repo_id: str | None = None,
    push_to_hub: bool = False,
    model_card_kwargs: Mapping[str, Any] | None = None,
    **push_to_hub_kwargs: Any,
) -> str | None:
    """Write a model folder with a model card, README.md.

    Args:
        bilm: The model.
        save_directory: The folder to write. A README.md that is already there is kept.
        repo_id: "owner/name", for `push_to_hub`; default: the name of the folder.
        push_to_hub: Upload the model, too.
        model_card_kwargs: Facts for the card that the model does not know: language, license, datasets, tags.
        push_to_hub_kwargs: Further arguments of `push_to_hub`.

    Returns:
        The address of the upload; None without one.

    Raises:
        ConfigError: `model_card_kwargs` has an unknown key.
        OutputError: The folder cannot be written, or the upload failed.
    """
    folder = Path(save_directory)
    card = model_card(bilm, **(model_card_kwargs or {}))
    bilm.save(folder)
    if not (folder / "README.md").exists():
        with atomic_write(folder / "README.md") as temporary:
            temporary.write_text(card, encoding="utf-8")
    if not push_to_hub:
        return None
    return _upload(folder, repo_id or folder.resolve().name, **push_to_hub_kwargs)


def push_to_hub(
    bilm: BiLM,
    repo_id: str,
    *,
    commit_message: str = "Push model using torchelmo.",
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    create_pr: bool | None = None,
    allow_patterns: Sequence[str] | str | None = None,
    ignore_patterns: Sequence[str] | str | None = None,
    delete_patterns: Sequence[str] | str | None = None,
    model_card_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """Upload a model and its card to the Hugging Face hub.

    Args:
        bilm: The model.
        repo_id: "owner/name". The repository is created if it does not exist.
        commit_message: The message of the commit.
        private: Whether a new repository is private; default: as the hub decides.
        token: The access token; default: that of `hf auth login`.
        branch: The branch; default: main.
        create_pr: Open a pull request instead of a commit.
        allow_patterns: Upload only files that match.
        ignore_patterns: Do not upload files that match.
        delete_patterns: Delete files of the repository that match.
        model_card_kwargs: As for `save_pretrained`.

    Returns:
        The address of the commit.

    Raises:
        MissingPackageError: The package huggingface_hub is not installed.
        OutputError: The upload failed.
    """
    with tempfile.TemporaryDirectory(prefix="torchelmo-") as temporary:
        folder = Path(temporary) / "model"
        save_pretrained(bilm, folder, model_card_kwargs=model_card_kwargs)
        return _upload(
            folder,
            repo_id,
            commit_message=commit_message,
            private=private,
            token=token,
            branch=branch,
            create_pr=create_pr,
            allow_patterns=allow_patterns,
            ignore_patterns=ignore_patterns,
            delete_patterns=delete_patterns,
        )


def model_card(
    bilm: BiLM,
    *,
    language: str | Sequence[str] | None = None,
    license: str | None = None,
    datasets: Sequence[str] = (),
    tags: Sequence[str] = (),
    **unknown: Any,
) -> str:
    """Return a model card in Markdown, from what the model and the run that trained it know.

    Args:
        bilm: The model. The settings and the learning curve are those of the run in the folder that it was loaded from.
        language: Language codes; default: the language of the training text, if it is known.
        license: The license of the weights.
        datasets: Ids of data sets on the hub.
        tags: Further tags.
        unknown: Raises a ConfigError that names the known keys.

    Returns:
        The text of README.md.
    """
    if unknown:
        raise ConfigError(f"model card: expected {', '.join(_CARD_KEYS)}, got {sorted(unknown)[0]!r}.")
    language = language or (bilm.lang if bilm.lang not in (None, "xx") else None)
    front: dict[str, Any] = {
        "library_name": "torchelmo",
        "pipeline_tag": "feature-extraction",
        "tags": ["elmo", "bilm", *tags],
    }
    if language:
        front["language"] = language if isinstance(language, str) else list(language)
    if license:
        front["license"] = license
    if datasets:
        front["datasets"] = list(datasets)
    # JSON strings and lists are YAML, too.
    lines = ["---", *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items()), "---", ""]
    lines += ["# ELMo biLM", "", "A bidirectional language model for contextual word vectors (ELMo).", "", *_usage()]
    lines += ["## Shape", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in _shape(bilm)), ""]
    run = _find_run(bilm)
    if run is not None:
        lines += [*_data(run), *_training(run), *_curve(run)]
    return "\n".join(lines).rstrip() + "\n"


def _upload(
    folder: Path,
    repo_id: str,
    *,
    commit_message: str = "Push model using torchelmo.",
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    **patterns: Any,
) -> str:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise missing_package("huggingface_hub", "hub") from error
    try:
        api = HfApi(token=token, library_name="torchelmo")
        repo = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if branch is not None:
            api.create_branch(repo, branch=branch, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo, folder_path=folder, commit_message=commit_message, revision=branch, **patterns
        )
    except Exception as error:  # of huggingface_hub, of httpx, and of the operating system
        raise OutputError(
            f"{repo_id}: could not be uploaded to the Hugging Face hub ({_first_line(error)}). Log in with `hf auth "
            "login`, check the name and the connection, and try again."
        ) from error
    return str(done.commit_url)


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{text.splitlines()[0]:.300}" if text else type(error).__name__


def _usage() -> list[str]:
    return [
        "```python",
        "import torchelmo",
        "",
        'elmo = torchelmo.Elmo("owner/name")  # the id of this repository',
        'vectors = elmo.embed(["I took a bow."], layers="average")',
        "```",
        "",
    ]


def _shape(bilm: BiLM) -> Iterator[tuple[str, str]]:
    config = bilm.config
    yield "layers", f"{config.n_layers} + the token layer, {config.dim} numbers each"
    yield "LSTM", f"{config.cell_dim} cells, projected to {config.projection_dim}, direction: {config.direction}"
    yield "input", config.input if config.input == "words" else f"{config.input}, {config.n_filters} filters"
    yield "softmax", f"{config.softmax_words:,} words" if config.softmax_words else "none"
    if config.objective == "masked":
        yield "objective", f"masked{', joint layers' if config.joint else ''}"
    yield "parameters", f"{sum(parameter.numel() for parameter in bilm.parameters()):,}"
    yield "origin", " ".join(bilm.origin.split()).replace("|", "\\|")


def _find_run(bilm: BiLM) -> Path | None:
    """Return the folder of the run that trained the model: that of the model, or the one above out/best."""
    folder = Path(bilm.source)
    return next((path for path in (folder, folder.parent) if (path / "metrics.jsonl").is_file()), None)


def _data(run: Path) -> list[str]:
    """Describe the prepared text of the run, if its folder still exists."""
    card = _read(Path(str(_settings(run).get("data", ""))) / "card.json")
    parts = card.get("parts")
    if not isinstance(parts, dict):
        return []
    rows = [
        f"| {name} | {part.get('sentences', 0):,} | {part.get('tokens', 0):,} |"
        for name, part in parts.items()
        if isinstance(part, dict)
    ]
    return ["## Data", "", "| part | sentences | tokens |", "|---|---|---|", *rows, ""]


def _training(run: Path) -> list[str]:
    settings = _settings(run)
    plain = {key: value for key, value in settings.items() if key not in ("data", "out", "init", "model")}
    if not plain:
        return []
    listed = json.dumps(plain, indent=2, ensure_ascii=False)
    return ["## Training", "", "Settings of `torchelmo pretrain`:", "", "```json", listed, "```", ""]


def _settings(run: Path) -> dict[str, Any]:
    """Return the settings in the last checkpoint of a run."""
    cards = sorted(run.glob("checkpoints/step-*/checkpoint.json"))
    settings = _read(cards[-1]).get("settings") if cards else None
    return settings if isinstance(settings, dict) else {}


def _curve(run: Path) -> list[str]:
    """Return the held-out perplexities over the run as a table."""
    points = [record for record in _records(run / "metrics.jsonl") if isinstance(record.get("heldout"), (int, float))]
    if not points:
        return []
    step = -(-len(points) // _MAX_CURVE)
    points = [point for i, point in enumerate(points) if i % step == 0 or i == len(points) - 1]
    rows = [
        f"| {point.get('step', 0):,} | {point.get('tokens', 0):,} | {_number(point.get('heldout_forward'))} | "
        f"{_number(point.get('heldout_backward'))} | {_number(point['heldout'])} |"
        for point in points
    ]
    head = ["| step | tokens | forward | backward | average |", "|---|---|---|---|---|"]
    return ["## Held-out perplexity", "", *head, *rows, ""]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for line in read_bounded(path, "the metrics of a run", max_bytes=2**28).splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # the line that a killed run was writing
            continue
        if isinstance(record, dict):
            yield record


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, (int, float)) else ""


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object; an empty one if there is none, because a card does not need it."""
    try:
        content = read_json(path, "a card")
    except TorchelmoError:
        return {}
    return content if isinstance(content, dict) else {}
