"""`xptrain`: resume, prove, list, show and compare runs, and serve them.

Commands load what they need when they run, so that `xptrain --help` is fast.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from xptrain.cli.arguments import EXIT_CODES, RUN, Allow, Extra, Json, Run, Yes
from xptrain.cli.helping import Command, Group
from xptrain.errors import EXIT_DIFFERS, EXIT_INTERRUPTED, InexactError, XptrainError

app = typer.Typer(
    name="xptrain",
    cls=Group,
    help="Experiment tracking and bit-for-bit exact resume for Keras 3 on JAX.",
    epilog=EXIT_CODES,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def names(allow: list[str] | None) -> list[str]:
    """Return the names that were given, once or several times, separated by commas."""
    return [name.strip() for text in allow or [] for name in text.split(",") if name.strip()]


def _version(asked: bool) -> None:
    if asked:
        from xptrain import __version__

        print(f"xptrain {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command(cls=Command, rich_help_panel="Train")
def resume(
    run: Run,
    extra: Extra = None,
    allow: Allow = None,
    yes: Yes = False,
) -> None:
    """Start a run's recorded command again and go on from its newest checkpoint.

    The command runs in its recorded folder, with the recorded interpreter and the recorded environment that
    moves bits, in the place of this process: signals reach it, and its exit code is the one you get. You are
    asked first when another user, host or repository recorded it. A finished run is not trained again.
    """
    from xptrain.cli.resuming import resume_run

    resume_run(run, extra or [], names(allow), yes)


@app.command(cls=Command, rich_help_panel="Train")
def fork(
    run: Run,
    step: Annotated[
        int,
        typer.Option(
            "--step",
            "-s",
            metavar="N",
            min=1,
            help="Begin from the checkpoint of this step; `xptrain show RUN` lists them.",
            show_default=False,
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a value of the config: --set lr=0.01; inside another: --set optimizer.lr=0.01. "
            "May be given several times.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Key of the new run; drawn if not given.", show_default=False),
    ] = None,
    extra: Extra = None,
    yes: Yes = False,
) -> None:
    """Start a new run from a checkpoint of another one, with a changed config.

    The script gets the changed values as `run.config`. Weights, optimizer, callbacks and the place in the
    data are the checkpoint's; variables that the config sets, such as the learning rate, are the config's.
    """
    from xptrain.cli.forking import fork_run

    fork_run(run, step, settings or [], key, extra or [], yes)


@app.command(cls=Command, name="list", rich_help_panel="Look back")
def list_(
    experiment: Annotated[
        str | None,
        typer.Option(
            "--experiment", "-e", metavar="NAME", help="Only runs of this experiment.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most this many.")
    ] = 30,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    from xptrain.cli.listing import list_runs

    list_runs(experiment, limit, as_json)


@app.command(cls=Command, rich_help_panel="Look back")
def show(run: Run, as_json: Json = False) -> None:
    """Show one run: attempts, checkpoints, grade, hazards, where its things are, how to resume it."""
    from xptrain.cli.showing import show_run

    show_run(run, as_json)


@app.command(cls=Command, rich_help_panel="Look back")
def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN RUN…", help=f"Two or more. {RUN}", show_default=False)
    ],
    all_rows: Annotated[
        bool, typer.Option("--all", "-a", metavar="", help="Also show what is equal.")
    ] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code", metavar="", help="Exit with 8 unless the newest states are equal bit for bit."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show where runs differ: config, metrics, state, code, data, packages, devices.

    It lists all that differs, of two runs or more. At which step two of them part, and what the likely cause
    is, says `xptrain explain`.
    """
    from xptrain.cli.comparing import compare_runs

    if not compare_runs(runs, all_rows, as_json) and exit_code:
        raise typer.Exit(EXIT_DIFFERS)


@app.command(cls=Command, rich_help_panel="Look back")
def explain(
    first: Annotated[str, typer.Argument(metavar="RUN", help=RUN, show_default=False)],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The other run.", show_default=False)],
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code", metavar="", help="Exit with 8 unless all states that both have are equal."
        ),
    ] = False,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay", metavar="", help="Train both again, as `xptrain verify` does, to find the very step."
        ),
    ] = False,
    allow: Allow = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Say where two runs part, and what differed before it: the likely cause first.

    States are compared by the digests of all checkpoints, also of deleted ones, and values as they were
    logged. All that differs between runs lists `xptrain compare`.
    """
    from xptrain.cli.explaining import explain_runs

    equal = explain_runs(first, second, as_json, replay=replay, allow=names(allow), yes=yes)
    if not equal and exit_code:
        raise typer.Exit(EXIT_DIFFERS)


@app.command(cls=Command, rich_help_panel="Prove")
def verify(
    run: Run,
    epoch: Annotated[
        int | None,
        typer.Option(
            "--epoch",
            "-e",
            metavar="K",
            min=1,
            help="Only this epoch of the run, counted from 1 over all its fits.",
            show_default=False,
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--all", "-a", metavar="", help="The whole run, from its beginning.")
    ] = False,
    allow: Allow = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Train a part of a run again beside its record and compare every bit; exits with 8 if any differs.

    By default that is what was trained since the last checkpoint but one. Nothing of the run is changed. What
    the script itself writes or sends, it writes and sends again.
    """
    from xptrain.cli.proving import verify_run

    if not verify_run(run, epoch, whole, names(allow), yes, as_json):
        raise typer.Exit(EXIT_DIFFERS)


@app.command(cls=Command, rich_help_panel="Prove", context_settings={"ignore_unknown_options": True})
def doctor(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT [ARGS]…",
            help="The script and its arguments, as after `python`; or -m and a module.",
            show_default=False,
        ),
    ],
    steps: Annotated[
        int, typer.Option(metavar="N", min=2, help="Steps to train; give it before SCRIPT.")
    ] = 6,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print JSON; give it before SCRIPT.")
    ] = False,
) -> None:
    """Tell before a long run whether it will resume exactly: train a few steps, kill, resume, compare.

    Nothing is recorded. What the script itself writes or sends, it does write and send. Exits with 8 when
    the resumed steps differ, with 5 when they are equal but the run's grade is `approximate`.
    """
    from xptrain.cli.proving import examine_script

    found = examine_script(command, steps, as_json)
    if not found.exact:
        raise typer.Exit(InexactError.exit_code if found.resumes_exactly else EXIT_DIFFERS)


@app.command(cls=Command, rich_help_panel="Look back")
def env(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="Say what changed here since this run. " + RUN, show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what is captured about this machine, and known hazards; or what changed since a run."""
    from xptrain.cli.environment import show_environment

    show_environment(run, as_json)


@app.command(cls=Command, rich_help_panel="Track")
def ui(
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Port to listen on; the first free one from 5000 on if not given.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address to listen on; keep it local: MLflow asks nobody who they are."
        ),
    ] = "127.0.0.1",
) -> None:
    """Serve MLflow on this project's store until Ctrl-C."""
    from xptrain.cli.serving import serve

    serve(host, port)


@app.command(cls=Command, rich_help_panel="Track")
def sync(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Only this run; all if not given. " + RUN, show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Send to the tracking store what it does not have, and the true status of runs that died."""
    from xptrain.cli.syncing import sync_runs

    sync_runs(run, as_json)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"xptrain: {message}", file=sys.stderr)


def main() -> None:
    """Run `xptrain`; errors of ours end it with one readable block and their exit code."""
    warnings.showwarning = _show_warning
    try:
        app(prog_name="xptrain")
    except XptrainError as error:
        from xptrain.cli.console import print_error

        print_error(error, as_json="--json" in sys.argv)
        sys.exit(error.exit_code)
    except OSError as error:
        # A file that may not be read, or a reader that went away (`xptrain list | head`).
        if not isinstance(error, BrokenPipeError):
            print(f"xptrain: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        _end_interrupted()
    except SystemExit as end:
        # Typer's words for Ctrl-C.
        if end.code == EXIT_INTERRUPTED:
            _end_interrupted()
        raise


def _end_interrupted() -> NoReturn:
    print("xptrain: interrupted", file=sys.stderr)
    sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
