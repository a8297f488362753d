"""benchmarks.embed joins the results of several runs, limits names the chosen kernel, and loops agree."""

import json

import torch

from benchmarks import embed, limits, loops
from torchelmo import BiLMConfig


def result(shape: str, name: str, sgemm: float) -> dict:
    row = {"what": "batch", "shape": shape, "batch": 1, "implementation": name, "ratio": None, "megabytes": 300.0}
    speeds = {"tokens_per_second": 100.0, "slowest": 90.0, "fastest": 110.0, "steps_per_second": 100.0}
    startup = {shape: {name: {"import": 1.0, "import without torch": 0.1, "load": 0.5, "first call": 0.4}}}
    one = {**row, **speeds, "what": "one sentence", "milliseconds": 200.0}
    machine = {"machine": "a processor", "commit": "abc", "threads": 2, "sgemm": sgemm, "reading": 20.0}
    return {**machine, "rows": [{**row, **speeds}, one], "startup": startup}


def test_results_of_several_runs_make_one_table(tmp_path, capsys):
    files = []
    for n, (shape, name) in enumerate([("small", "float32"), ("small", "float32 before"), ("original", "int8")]):
        files.append(tmp_path / f"{n}.json")
        files[-1].write_text(json.dumps(result(shape, name, 100.0 + n)))
    joined = embed.read_results(files)
    assert joined["sgemm"] == 102.0
    assert embed.read_results([*files, *files])["rows"] == joined["rows"]
    assert set(joined["startup"]["small"]) == {"float32", "float32 before"}
    embed.print_tables(joined)
    printed = capsys.readouterr().out
    assert "| original | 1 | int8 | 100 (90–110) |" in printed
    assert "| small | float32 before | 200.0 ms | 1.0 s | 0.10 s | 0.50 s | 0.40 s |" in printed


def test_the_chosen_kernel_has_a_column():
    config = BiLMConfig(projection_dim=8, cell_dim=24)
    with torch.inference_mode():
        variants = limits.make_variants(limits.make_weights(config))
        assert limits.choose(config, 1) in variants
        assert all(time > 0 for time in limits.medians([lambda: variants["plain, sequential"](3)], 1))


def test_all_loops_give_the_same_results():
    torch.manual_seed(0)
    with torch.inference_mode():
        found = loops.make_loops(BiLMConfig(projection_dim=8, cell_dim=24), 3)
        expected = found.pop("batched")()
        assert isinstance(expected, torch.Tensor)
        found.pop("`torch._VF.lstm`, no clipping")()
        for run in found.values():
            torch.testing.assert_close(torch.stack(list(run())), expected)  # type: ignore[call-overload]
