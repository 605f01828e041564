"""Arguments and options that several commands take, and the exit codes, as `--help` explains them."""

from __future__ import annotations

from typing import Annotated

import typer

EXIT_CODES = """\
Exit codes

0  success                               6  a checkpoint cannot be used
1  the script failed, or another fault   7  the tracking store cannot be used
2  wrong usage                           8  two things compared differ
3  no such run, or more than one       130  interrupted (Ctrl-C)
4  the run is being trained now        143  stopped by SIGTERM
5  refused: the bits would be others   128+n  killed by signal n"""
RUN = "A run: its key or MLflow run id, the first digits of one if no other begins so, or @last."

Run = Annotated[str, typer.Argument(metavar="RUN", help=RUN, show_default=False)]
Json = Annotated[
    bool, typer.Option("--json", metavar="", help="Print JSON on stdout, and errors as JSON on stderr.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Train although these differ from what was recorded, separated by commas; the bits may be "
        "others. code (the train step), config (with the seed, arguments of fit, flags and settings), data "
        "(and their order), packages (versions), devices (machine, cores), topology (number and mesh of "
        "devices), epochs (how many), callbacks (which, and their settings), hazards (known causes of wrong "
        "numbers).",
        show_default=False,
    ),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        metavar="",
        help="Start the recorded command without asking, also when another user, host or repository "
        "recorded it.",
    ),
]
Extra = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- ARGS]",
        help="After --, more arguments for the script, added to the recorded ones.",
        show_default=False,
    ),
]
