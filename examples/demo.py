"""Train a run, kill it, resume it; train it again without a stop; show that both end with the same bits.

    python examples/demo.py            (or: make demo)

Everything is written to demo-out/, which is made anew each time. The exit code is 0 when the two runs are
equal in every bit, and 8 when they are not (try --second-seed 1).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xptrain.analysis.reading import Reading, read
from xptrain.checkpoint.folder import HOST_FILE
from xptrain.errors import EXIT_DIFFERS
from xptrain.tracking.finding import all_runs, find

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("quickstart.py")
MARKER = ".made-by-xptrain-demo"
PATIENCE_S = 120
say = Console(highlight=False, markup=False, emoji=False, width=min(100, Console().width))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "demo-out")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--second-seed", type=int, default=0, help="not 0: the second run differs")
    args = parser.parse_args()
    began = time.monotonic()
    out = fresh_folder(args.out.absolute())
    home, env = out / ".xptrain", environment(out)

    step("1", f"Start {SCRIPT.name} ({args.epochs} epochs), and kill it inside an epoch")
    killed = train_and_kill(home, out, env, args.epochs)

    step("2", "Resume it by its id")
    command("xptrain", "resume", killed)
    with (out / "resumed.log").open("w") as log:
        subprocess.run(xptrain("resume", killed), cwd=out, env=env, stdout=log, check=True)
    say.print(f"finished: {read(find(killed, home)).step} steps")

    step("3", "Train the same script once more, without a stop")
    command("python", f"examples/{SCRIPT.name}", *train(args.epochs, args.second_seed)[2:])
    with (out / "straight.log").open("w") as log:
        subprocess.run(train(args.epochs, args.second_seed), cwd=out, env=env, stdout=log, check=True)
    straight = next(folder.key for folder in all_runs(home) if folder.key != killed)
    say.print(f"finished: {read(find(straight, home)).step} steps")

    step("4", "Compare them: resumed = killed and resumed, straight = never stopped")
    subprocess.run(xptrain("sync"), cwd=out, env=env, stdout=subprocess.DEVNULL, check=True)
    runs = [read(find(key, home)) for key in (killed, straight)]
    equal = all(
        [
            compare_variables(runs),
            compare_histories(runs),
            compare_points(runs, env),
            compare_steps(runs),
        ]
    )
    say.print(f"\nbit-identical: {'yes' if equal else 'no'}\n", style="bold green" if equal else "bold red")
    for name, run in zip(("killed and resumed", "never stopped"), runs, strict=True):
        say.print(f"  {name:<19} run {run.info.key}, MLflow run {run.run_id}")
    say.print(f"\nLook at them:  cd {out} && xptrain ui     (or: xptrain list, show, compare)")
    say.print(f"That took {time.monotonic() - began:.0f} s.", style="dim")
    return 0 if equal else EXIT_DIFFERS


# --- the runs ---------------------------------------------------------------------------------------------


def train_and_kill(home: Path, out: Path, env: dict[str, str], epochs: int) -> str:
    """Start the script and SIGKILL it between two steps of an epoch; returns the run's key."""
    command("python", f"examples/{SCRIPT.name}", *train(epochs)[2:])
    with (out / "killed.log").open("w") as log:
        process = subprocess.Popen(train(epochs), cwd=out, env=env, stdout=log)
    deadline = time.monotonic() + PATIENCE_S
    while not is_inside_a_later_epoch(home):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            sys.exit(
                f"the script could not be killed in time (exit {process.poll()}): see {out / 'killed.log'}"
            )
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    run = read(all_runs(home)[-1])
    newest = run.receipts[-1]
    say.print(
        f"\nkilled with SIGKILL after step {run.step}; its newest checkpoint is of step {newest.step}",
        style="bold",
    )
    say.print(f"status now: {run.status}")
    return run.info.key


def is_inside_a_later_epoch(home: Path) -> bool:
    """Tell whether the run has saved two epochs and trained more steps since, but not a whole epoch."""
    for folder in all_runs(home):
        run = read(folder)
        epoch_ends = [receipt.step for receipt in run.receipts]
        if len(epoch_ends) >= 2:
            per_epoch = epoch_ends[-1] - epoch_ends[-2]
            return run.step > epoch_ends[-1] and run.step % per_epoch not in (0, per_epoch - 1)
    return False


def train(epochs: int, seed: int = 0) -> list[str]:
    other = ["--seed", str(seed)] if seed else []
    return [sys.executable, str(SCRIPT), "--epochs", str(epochs), *other]


def xptrain(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "xptrain.cli.main", *arguments]


def environment(out: Path) -> dict[str, str]:
    """Return an environment in which nothing of this machine's own tracking or job settings is left."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XPTRAIN_", "MLFLOW_"))}
    return {
        **kept,
        "KERAS_BACKEND": "jax",
        "XPTRAIN_HOME": str(out / ".xptrain"),
        # The three processes compile the same programs: the later ones take them from here.
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(out / "compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # XLA logs a false alarm about CPU features for each program from the cache.
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def fresh_folder(out: Path) -> Path:
    """Make the folder anew; one that this demo did not make is never deleted."""
    if out.exists():
        if not (out / MARKER).exists():
            sys.exit(f"{out} exists and was not made by this demo: move it away, or give another --out")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARKER).touch()
    return out


# --- the comparison ---------------------------------------------------------------------------------------


def compare_variables(runs: list[Reading]) -> bool:
    """Compare the digest of every variable in the two last checkpoints."""
    receipts = [run.receipts[-1] for run in runs]
    leaves = [{leaf.path: leaf for leaf in receipt.leaves} for receipt in receipts]
    steps = " and ".join(dict.fromkeys(str(receipt.step) for receipt in receipts))
    rows = table(f"Digest of every variable in the last checkpoint (step {steps})", "variable")
    paths = sorted(set(leaves[0]) | set(leaves[1]), key=lambda path: (order(path), path))
    digests = {path: [leaf[path].digest if path in leaf else "-" for leaf in leaves] for path in paths}
    for path in paths:
        if not path.startswith("host/"):
            rows.add_row(shortened(path), *(d[:8] for d in digests[path]), mark(len(set(digests[path])) == 1))
    host = [path for path in paths if path.startswith("host/")]
    same_host = all(len(set(digests[path])) == 1 for path in host)
    rows.add_row(f"{len(host)} arrays of callbacks and random generators", "", "", mark(same_host))
    differing = sum(len(set(pair)) > 1 for pair in digests.values())
    equal = not differing and receipts[0].digest == receipts[1].digest
    total = f"all {len(paths)}: {len(paths) - differing} equal, {differing} differing"
    rows.add_row(total, *(receipt.digest[:8] for receipt in receipts), mark(equal), style="bold")
    say.print(rows)
    say.print("  (end/… is what the fit left in the model when it returned)", style="dim")
    return equal


def compare_histories(runs: list[Reading]) -> bool:
    """Compare the `History` that each fit gave back, as its last checkpoint keeps it."""
    histories = [history(run) for run in runs]
    same = json.dumps(histories[0], sort_keys=True) == json.dumps(histories[1], sort_keys=True)
    rows = table("History: last of its values", "epoch metric")
    for metric in sorted(set(histories[0]) | set(histories[1])):
        values = [h.get(metric, []) for h in histories]
        counts = " / ".join(dict.fromkeys(str(len(v)) for v in values))
        shown = (f"{v[-1]:.10g}" if v else "-" for v in values)
        rows.add_row(f"{metric} ({counts} epochs)", *shown, mark(values[0] == values[1]))
    say.print(rows)
    return same


def compare_points(runs: list[Reading], env: dict[str, str]) -> bool:
    """Compare what MLflow's own client finds in its store; a process of its own imports MLflow."""
    ids = [str(run.run_id) for run in runs]
    uri = runs[0].info.tracking_uri
    done = subprocess.run(
        [sys.executable, "-c", READ_MLFLOW, uri, *ids], env=env, capture_output=True, text=True, check=True
    )
    found: list[dict[str, list[list[float]]]] = json.loads(done.stdout.splitlines()[-1])
    rows = table("Metric points in MLflow, read back with its own client", "")
    # Values that measure time cannot repeat.
    points = [{m: p for m, p in run.items() if not m.startswith("time/")} for run in found]
    counts = [sum(len(p) for p in run.values()) for run in points]
    doubled = [sum(len(p) - len({step for step, _ in p}) for p in run.values()) for run in points]
    flat = [{(m, s): v for m, p in run.items() for s, v in p} for run in points]
    lost = [len(flat[1 - n].keys() - flat[n].keys()) for n in (0, 1)]
    differing = sum(flat[0][key] != flat[1][key] for key in flat[0].keys() & flat[1].keys())
    rows.add_row("points", *map(str, counts), mark(counts[0] == counts[1]))
    rows.add_row("lost (only the other run has them)", *map(str, lost), mark(not any(lost), "none"))
    rows.add_row("doubled (one metric and step twice)", *map(str, doubled), mark(not any(doubled), "none"))
    rows.add_row("values that differ", str(differing), str(differing), mark(not differing, "none"))
    say.print(rows)
    return counts[0] == counts[1] and not any(lost) and not any(doubled) and not differing


def compare_steps(runs: list[Reading]) -> bool:
    """Show what each attempt trained: a resumed one goes on from its checkpoint, it does not begin again."""
    rows = plain_table("Steps trained", "attempt", "from step", "to step", "trained", "ended")
    for name, run in zip(("resumed", "straight"), runs, strict=True):
        for facts in run.attempts:
            numbers = (str(facts.from_step), str(facts.to_step), str(facts.trained))
            rows.add_row(f"{name} #{facts.attempt.attempt}", *numbers, facts.status)
    say.print(rows)
    resumed = runs[0].attempts[1]
    return bool(resumed.from_step) and runs[0].step == runs[1].step


READ_MLFLOW = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
runs = []
for run_id in sys.argv[2:]:
    names = client.get_run(run_id).data.metrics
    runs.append({n: [[m.step, m.value] for m in client.get_metric_history(run_id, n)] for n in names})
print(json.dumps(runs))
"""


def history(run: Reading) -> dict[str, list[Any]]:
    """Return the `History` callback's values from a run's last checkpoint."""
    folder = run.checkpoints.folder_of(run.receipts[-1].step)
    callbacks = json.loads((folder / HOST_FILE).read_text())["python"]["callbacks"]
    values: dict[str, list[Any]] = plain(callbacks[-1]["state"]["history"])
    return values


def plain(data: Any) -> Any:
    """Return lists and dicts as they were; a checkpoint numbers them, so that shared ones stay shared."""
    if not isinstance(data, dict) or data.get("!") != "object":
        return data
    items = [plain(item) for item in data["v"]]
    return dict(zip(items[::2], items[1::2], strict=True)) if data["kind"] == "dict" else items


def order(path: str) -> int:
    """Put the model first, then what the fit left behind, the optimizer, the metrics and the host state."""
    return ["model", "end", "optimizer", "metrics", "host"].index(path.partition("/")[0])


# --- what is shown ----------------------------------------------------------------------------------------


def step(number: str, text: str) -> None:
    say.print(f"\n{number}. {text}", style="bold cyan")


def command(*words: str) -> None:
    say.print(f"$ {' '.join(words)}", style="green")


def table(title: str, first: str) -> Table:
    return plain_table(title, first, "resumed", "straight", "")


def plain_table(title: str, *columns: str) -> Table:
    say.print()
    made = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        made.add_column(column, no_wrap=True, header_style="dim")
    return made


def mark(good: bool, word: str = "equal") -> Text:
    return Text(word, "green") if good else Text("DIFFERS", "bold red")


def shortened(path: str) -> str:
    """Return a variable's key without the part that says that an optimizer's slot belongs to the model."""
    return path.replace("/model/", "/") if path.startswith("optimizer/") else path


if __name__ == "__main__":
    sys.exit(main())
