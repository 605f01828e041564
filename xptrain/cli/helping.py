"""How `xptrain --help` reads: usage as it is typed, no placeholders of types, and words of other tools."""

from __future__ import annotations

import inspect
from typing import Any, Final

from typer.core import TyperArgument, TyperCommand, TyperGroup

# What other tools call it.
_CALLED: Final = {
    "diff": "'compare' (all that differs) or 'explain' (where two runs part, and why)",
    "why": "'explain'",
    "ls": "'list'",
    "runs": "'list'",
    "status": "'show', or 'list' for all runs",
    "info": "'show'",
    "log": "'show'",
    "logs": "'show'",
    "history": "'show', or xptrain.history(…) in Python",
    "continue": "'resume'",
    "restart": "'resume'",
    "branch": "'fork'",
    "check": "'verify' (a run) or 'doctor' (a script)",
    "test": "'verify' (a run) or 'doctor' (a script)",
    "mlflow": "'ui'",
    "push": "'sync'",
}


class Command(TyperCommand):
    """A command whose help names things as they are typed."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        # Typer keeps the line breaks of all paragraphs but the first.
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                _hide_type(parameter)

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help as a flag that takes nothing."""
        return _flag(super().get_help_option(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what is typed after the command; an argument's metavar says whether it may be left out."""
        arguments = [p.metavar or str(p.name) for p in self.params if isinstance(p, TyperArgument)]
        return ["[OPTIONS]", *arguments]


class Group(TyperGroup):
    """All commands; one that other tools call otherwise is pointed to."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help as a flag that takes nothing."""
        return _flag(super().get_help_option(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command, or say what it is called here."""
        name = args[0] if args else ""
        if name in _CALLED and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command {name!r}. Use {_CALLED[name]}.")
        return super().resolve_command(ctx, args)


def _flag(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option


def _hide_type(argument: Any) -> None:
    """Leave out `<str>` beside an argument, where this version of Typer shows it."""
    argument.display_type_rich = lambda ctx: None
