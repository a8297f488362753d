"""What a run measures: metrics.jsonl, TensorBoard events and a PNG of the learning curve."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.files import atomic_write


class Report(NamedTuple):
    """Where a run stands; means are over the steps since the report before."""

    step: int
    n_steps: int | None  # None where the clock decides
    tokens: int  # read so far, each once (both directions predict it)
    seconds: float  # of training, over all pieces of the run
    tokens_per_second: float
    loss: float  # mean of the directions
    forward: float | None  # perplexity by the training loss
    backward: float | None
    lr: float
    gradient_norm: float
    remaining: float  # seconds to the end, by the pace so far
    heldout_forward: float | None = None  # exact perplexities, where this step was evaluated
    heldout_backward: float | None = None
    heldout: float | None = None  # their average

    def line(self) -> str:
        """One line for people."""
        of = f"/{self.n_steps}" if self.n_steps else ""
        parts = [f"step {self.step}{of}", f"{self.tokens_per_second:,.0f} tokens/s", f"loss {self.loss:.3f}"]
        parts += [
            f"{name} {value:.1f}"
            for name, value in (("forward", self.forward), ("backward", self.backward))
            if value is not None
        ]
        parts += [f"lr {self.lr:.2g}", f"{duration(self.remaining)} left"]
        if self.heldout is not None:
            ways = (self.heldout_forward, self.heldout_backward)
            both = ", ".join(f"{value:.2f}" for value in ways if value is not None)
            parts.append(f"held-out perplexity {self.heldout:.2f} ({both})")
        return "  ".join(parts)


class Metrics:
    """Appends reports to out/metrics.jsonl and, where tensorboard is installed, to out/tensorboard."""

    def __init__(self, out: Path, step: int, *, tensorboard: bool = True, writes: bool = True) -> None:
        """`step`: what was recorded after it belongs to a piece of the run that was lost, and goes."""
        self.path, self._events = out / "metrics.jsonl", None
        self.writes = writes  # rank 0 alone
        if writes:
            kept = [record for record in read_metrics(self.path) if record["step"] <= step]
            with atomic_write(self.path) as temporary:
                temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
            if tensorboard:
                self._events = _open_events(out / "tensorboard", step)

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *error: object) -> None:
        if self._events is not None:
            self._events.close()

    def write(self, report: Report) -> None:
        if not self.writes:
            return
        record = {name: _number(value) for name, value in report._asdict().items() if value is not None}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self._events is not None:
            for name in record.keys() - {"step", "n_steps"}:
                self._events.add_scalar(name, record[name], report.step)
            self._events.flush()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl; a last line that a killed process left half written is dropped."""
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def read_evaluations(out: Path) -> list[dict[str, Any]]:
    """The records of a run that have a held-out perplexity."""
    return [record for record in read_metrics(out / "metrics.jsonl") if "heldout" in record]


def draw_curve(out: Path) -> Path | None:
    """out/curve.png from out/metrics.jsonl; None where matplotlib is missing or nothing was measured."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import StrMethodFormatter
    except ImportError:
        return None
    records = read_metrics(out / "metrics.jsonl")
    if not records:
        return None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, style in (
        ("forward", "-"),
        ("backward", "-"),
        ("heldout_forward", "o--"),
        ("heldout_backward", "o--"),
    ):
        points = [(record["tokens"] / 1e6, record[name]) for record in records if name in record]
        if points:
            axes.plot(*zip(*points), style, label=name.replace("heldout_", "held-out "), linewidth=1.2, markersize=4)
    axes.set(xlabel="million tokens", ylabel="perplexity", yscale="log")
    for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        ticks(StrMethodFormatter("{x:g}"))
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    with atomic_write(out / "curve.png") as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return out / "curve.png"


def duration(seconds: float) -> str:
    """
    >>> duration(59), duration(61), duration(3720)
    ('59s', '1m01s', '1h02m')
    """
    if not math.isfinite(seconds):
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def perplexity_of(loss: float | None) -> float | None:
    """exp, but for a loss so high that it has none."""
    return None if loss is None else math.exp(min(loss, 700.0))


def _number(value: float) -> float:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _open_events(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)
