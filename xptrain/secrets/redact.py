"""Keeps secrets out of everything that is recorded: text, settings, arguments, files.

One rule for all of them. It would rather redact a harmless value than record a secret one; what was
redacted is said, so that nobody takes the record for complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from xptrain.secrets.names import is_secret_name, is_strong_secret_name
from xptrain.secrets.patterns import KEY_END, KEY_LINE, SECRET_FILE, SECRET_FOLDERS, VALUES

REDACTED: Final = "<redacted>"
_CODE_SUFFIXES: Final = frozenset({".py", ".pyi", ".pyx", ".ipynb"})
_NOT_VALUES: Final = frozenset({REDACTED, "none", "null", "true", "false"})
_NAME = re.compile(r"(?:(?<![\w-])--?)?[A-Za-z_][\w.-]*")

# What may follow a name: brackets, a type, the assignment, line breaks (with a diff's + or -), one call
# such as SecretStr(…) but not os.getenv(…), then a string literal: triple, escaped (JSON in a string), plain.
_LITERAL = (
    r"""[rbfuRBFU]{0,2}(?:(?P<quote3>\"{3}|'{3})(?P<long>(?:\\.|(?!(?P=quote3))[\s\S])+)(?P=quote3)?"""
    r"""|\\(?P<quote2>["'])(?P<escaped>(?:(?!\\(?P=quote2))[^\n])+)(?:\\(?P=quote2))?"""
    r"""|(?P<quote1>["'])(?P<plain>(?:\\.|(?!(?P=quote1))[^\n])+)(?P=quote1)?)"""
)
_CALL = (
    r"(?:(?!(?:[\w.]*\.)?(?:get|getenv|getpass|input|environ|pop)\()"
    r"[A-Za-z_][\w.]{0,60}\(\s*(?:\w{1,40}\s*=\s*)?)?"
)
_ASSIGNED = re.compile(
    r"""(?:\\?["'])?\s{0,4}\]?[ \t]*(?::[ \t]*[\w.]{1,40}(?:\[[^]\n]{0,60}\])?(?:[ \t]*\|[ \t]*\w+)?)?"""
    r"""[ \t]*(?:=(?!=)|:=?)"""
    r"""(?P<before>[\s(\[{+\\-]{0,40}?)""" + _CALL + _LITERAL
)
# os.environ.setdefault("API_KEY", "…"), add_argument("--token", default="…")
_PAIRED = re.compile(r"""["'][ \t]*,(?P<before>[^"'()\n]{0,80}\bdefault\s*=)?\s*""" + _LITERAL)
# The rest of "a" "b" and "a" + "b", and of a list when one was opened.
_JOINED = re.compile(r"[\s+\\-]{0,40}" + _LITERAL)
_LISTED = re.compile(r"[\s,+\\-]{0,40}" + _LITERAL)
# password: hunter2, --password hunter2
_UNQUOTED = re.compile(r"""["']?(?:[ \t]*[:=][ \t]*|(?P<gap>[ \t]+))(?P<value>[^\s"'`,;&<>()\[\]{}$]+)""")


def is_secret_file(path: str | PurePath) -> bool:
    """Say whether a file's content must never be copied, judged by its name and folders alone."""
    pure = PurePath(path)
    return bool(SECRET_FILE.match(pure.name)) or bool(SECRET_FOLDERS.intersection(pure.parts[:-1]))


def redact_text(text: str, name: str = "") -> tuple[str, list[str]]:
    """Replace every secret in a text by `<redacted>`.

    Args:
        text: Source code, a diff, a command line or a value.
        name: File name, if there is one. In Python files only string literals count as values; in
            anything else `password: hunter2` counts too.

    Returns:
        The text, and one note for each kind of thing that was redacted.

    Example:
        >>> redact_text('login(password="hunter2")', "train.py")
        ('login(password="<redacted>")', ['password'])
    """
    notes: set[str] = set()
    for kind, pattern in VALUES:
        text, count = pattern.subn(_keep_prefix, text)
        notes.update([kind] if count else [])
    text = _redact_key_tails(text, notes)
    code = PurePath(name).suffix in _CODE_SUFFIXES
    parts: list[str] = []
    done = 0
    for match in _NAME.finditer(text):
        if match.start() < done or not is_secret_name(match[0]):
            continue
        for begin, end in _values_after(text, match, code):
            if text[begin:end].lower() in _NOT_VALUES:
                continue
            parts += [text[done:begin], REDACTED]
            done = end
            notes.add(match[0].strip("-"))
    return "".join([*parts, text[done:]]), sorted(notes)


def redact_mapping(mapping: Mapping[str, Any], path: str = "") -> tuple[dict[str, Any], list[str]]:
    """Replace every secret in nested settings by `<redacted>`.

    Args:
        mapping: Settings of JSON kinds, nested to any depth.
        path: Name of the mapping itself, put before the names in the notes.

    Returns:
        A copy, and the names of what was redacted. Numbers, booleans and None under a name such as
        `token` are kept; under `password` only booleans and None are.

    Example:
        >>> redact_mapping({"lr": 0.1, "hub": {"token": "abc"}})
        ({'lr': 0.1, 'hub': {'token': '<redacted>'}}, ['hub.token'])
    """
    notes: list[str] = []
    return {str(k): _redact_item(str(k), v, path, notes) for k, v in mapping.items()}, notes


def redact_argv(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Replace secrets in command-line arguments, also where the value follows its option (`--token abc`)."""
    shown: list[str] = []
    notes: list[str] = []
    for index, argument in enumerate(argv):
        before = argv[index - 1] if index else ""
        if before.startswith("-") and "=" not in before and is_secret_name(before) and argument[:2] != "--":
            shown.append(REDACTED)
            notes.append(before.lstrip("-"))
            continue
        text, found = redact_text(argument)
        shown.append(text)
        notes.extend(found)
    return shown, notes


def _redact_item(name: str, value: Any, path: str, notes: list[str], secret: bool = False) -> Any:
    where = f"{path}.{name}" if path else name
    secret = secret or is_secret_name(name)
    if isinstance(value, Mapping):
        # Everything below a name such as `credentials` is secret, whatever it is called.
        return {str(k): _redact_item(str(k), v, where, notes, secret) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_item(name, item, path, notes, secret) for item in value]
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("utf-8", "replace")
    if value is None or isinstance(value, bool) or value == "":
        return value
    if secret and (isinstance(value, str) or is_strong_secret_name(where.lower())):
        notes.append(where)
        return REDACTED
    if not isinstance(value, str):
        return value
    text, found = redact_text(value)
    notes.extend([where] if found else [])
    return text


def _keep_prefix(match: re.Match[str]) -> str:
    return (match.groupdict().get("keep") or "") + REDACTED


def _redact_key_tails(text: str, notes: set[str]) -> str:
    """Redact the base64 lines before an END line: a diff hunk may start in the middle of a key."""
    if not KEY_END.search(text):
        return text
    kept: list[str] = []
    for line in text.splitlines(keepends=True):
        if KEY_END.search(line):
            notes.add("private key")
            while kept and KEY_LINE.match(kept[-1]):
                kept.pop()
            line = KEY_END.sub(REDACTED, line)
        kept.append(line)
    return "".join(kept)


def _values_after(text: str, name: re.Match[str], code: bool) -> Iterator[tuple[int, int]]:
    """Yield where the values of a secret name begin and end: one, unless the literal goes on."""
    match = _ASSIGNED.match(text, name.end()) or _PAIRED.match(text, name.end())
    if match:
        opened = any(bracket in (match["before"] or "") for bracket in "([{")
        while match:
            yield match.span(next(g for g in ("long", "escaped", "plain") if match[g] is not None))
            match = (_LISTED if opened else _JOINED).match(text, match.end())
        return
    match = None if code else _UNQUOTED.match(text, name.end())
    if match and (match["gap"] is None or name[0].startswith("-")):
        yield match.span("value")
