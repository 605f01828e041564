"""`xptrain verify` and `xptrain doctor`: what comes out again, and what will."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from xptrain.analysis.parting import StateParting
from xptrain.analysis.proof.doctor import Diagnosis, examine
from xptrain.analysis.proof.verify import Verdict, verify
from xptrain.analysis.reading import read
from xptrain.analysis.recorded import recorded
from xptrain.cli import console
from xptrain.cli.resuming import ask
from xptrain.tracking.finding import find, home


def verify_run(
    name: str, epoch: int | None, whole: bool, allow: Sequence[str], yes: bool, as_json: bool
) -> bool:
    """Train a part of a run again and print how it compares; returns whether every bit is the same.

    Raises:
        RunNotFoundError: No run or more than one has that name.
        XptrainError: It could not be replayed.
    """
    folder = find(name, home())
    reading = read(folder)
    command = recorded(reading)
    command.check()
    title = f"run {folder.key} of {reading.info.experiment}: is trained again beside its record"
    console.err().print(title, style="bold", soft_wrap=True)
    console.err().print(console.facts({"command": command.shown, "in": command.cwd}))
    if not yes:
        ask(reading, command)
    verdict = verify(folder.key, epoch=epoch, whole=whole, allow=allow, yes=True, home=home())
    if as_json:
        console.print_json(verdict.to_json())
    else:
        _print(verdict)
    return verdict.equal


def _print(verdict: Verdict) -> None:
    found = verdict.comparison
    steps = ", ".join(map(str, found.steps[:8])) + (" …" if len(found.steps) > 8 else "")
    begun = f"the checkpoint of step {verdict.from_step}" if verdict.from_step else "the beginning"
    host = ", ".join(map(str, found.host_steps)) or "none: the checkpoints are deleted"
    rows = {
        "replayed": f"steps {verdict.from_step + 1} to {verdict.to_step}, from {begun}",
        "states": f"after step {steps}: {found.tensors} tensors",
        "callbacks, generators": f"after step {host}" if found.host_steps else host,
        "logged values": str(found.values),
        "took": f"{verdict.seconds:.1f} s",
    }
    out = console.out()
    out.print()
    out.print(console.facts(rows))
    out.print()
    sentence = f"{verdict.headline[0].upper()}{verdict.headline[1:]}."
    out.print(Text(sentence, "green" if verdict.equal else "bold red"), soft_wrap=True)


def examine_script(command: Sequence[str], steps: int, as_json: bool) -> Diagnosis:
    """Start, cut off, resume and start again a script, and print what came of it.

    Raises:
        UsageError: It cannot be examined.
        XptrainError: It failed.
    """
    console.err().print(f"{command[0]}: to be trained for {steps} steps, cut off, resumed, and started again")
    found = examine(command, steps)
    if as_json:
        console.print_json(found.to_json())
        return found
    what = [*(found.host), *found.values]
    resumed = _differs(found.resumed) or (
        f"other: {', '.join(what[:3])}" if what else "every bit is the same"
    )
    again = _differs(found.repeated) or "every bit is the same"
    rows = {
        "grade": console.grade(found.grade),
        "hazards": "\n".join(found.hazards) or "none known",
        f"resumed after step {found.cut}": f"{resumed}, up to step {found.steps}",
        "started again": again
        if found.repeated is None
        else f"{again}. That is no fault of the resume: {_LOOSE}",
    }
    out = console.out()
    out.print()
    out.print(console.facts(rows))
    out.print()
    out.print(Text(_sentence(found), "green" if found.exact else "bold red"), soft_wrap=True)
    return found


_LOOSE = (
    "something is drawn before xptrain.run(…) sets the seed, such as the weights of a model made before it."
)


def _sentence(found: Diagnosis) -> str:
    if found.exact:
        return "This run will resume exactly."
    if not found.resumes_exactly:
        return "This run does not resume exactly: something that moves it is in no checkpoint."
    return f"What was tried resumes exactly, but that is not promised for all of the run: {found.grade}."


def _differs(parting: StateParting | None) -> str:
    if parting is None:
        return ""
    return f"other after step {parting.step}: {parting.named(3)}"
