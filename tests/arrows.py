"""Reads a package's imports from its source and holds them against rules; nothing is imported or run.

Imports inside functions and under `TYPE_CHECKING` count like any other, and so do names that are reached
through attributes (`keras.src`) or through the package's table of lazily loaded public names.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Private names of the standard library that are its documented interface.
DOCUMENTED_PRIVATE = {"_asdict", "_exit", "_fields", "_replace"}
EXECUTES = {"pickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
EXECUTING_CALLS = {"eval", "exec", "compile", "__import__"}
EXECUTING_ATTRIBUTES = {"read_pickle", "to_pickle", "enable_unsafe_deserialization"}


@dataclass(frozen=True)
class Touch:
    """One use of a dotted name by a module; `eager` when it happens as the module is imported."""

    line: int
    target: str
    eager: bool


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name, its syntax tree and everything it imports."""

    name: str
    path: str
    tree: ast.Module
    lines: int
    touches: tuple[Touch, ...]

    @property
    def room(self) -> str:
        """The part of the package that this module belongs to; empty for the package itself."""
        return self.name.partition(".")[2].partition(".")[0]

    def at(self, line: int) -> str:
        return f"{self.path}:{line}"


Tree = Mapping[str, Module]


def read(package: Path) -> Tree:
    """Return every module of a package folder by dotted name."""
    files = {_dotted(package, file): file for file in sorted(package.rglob("*.py"))}
    sources = {name: file.read_text() for name, file in files.items()}
    trees = {name: ast.parse(text) for name, text in sources.items()}
    homes = _lazy_names(trees[package.name])
    return {
        name: Module(
            name,
            files[name].relative_to(package.parent).as_posix(),
            tree,
            len(sources[name].splitlines()),
            tuple(
                Touch(line, _resolve(target, trees, homes), eager)
                for line, target, eager in _touches(tree, name, files[name].name == "__init__.py")
            ),
        )
        for name, tree in trees.items()
    }


def wrong_arrows(
    tree: Tree, arrows: Mapping[str, Collection[str]], open_to_all: Collection[str]
) -> list[str]:
    """Name each import of a room that the arrow table does not allow."""
    found = []
    for module in tree.values():
        if not module.room:
            continue
        if module.room not in arrows:
            found.append(f"{module.path}: the room {module.room!r} is not in the arrow table")
            continue
        allowed = {module.room, *arrows[module.room]}
        if module.room not in open_to_all:
            allowed |= set(open_to_all)
        for touch in module.touches:
            if touch.target in tree and (room := tree[touch.target].room) not in allowed:
                found.append(f"{module.at(touch.line)}: {module.room} imports {room or 'the package itself'}")
    return found


def wrong_reach(tree: Tree, never: Collection[tuple[str, str]]) -> list[str]:
    """Name each module from which a chain of imports leads into a room that must stay out of its sight."""
    found = []
    for module in tree.values():
        hidden = {target for source, target in never if source == module.room}
        for name, chain in _reach(tree, module.name, eager=False).items():
            if tree[name].room in hidden:
                found.append(f"{module.room} reaches {tree[name].room}: {' -> '.join(chain)}")
    return found


def wrong_start(tree: Tree, never: Mapping[str, Collection[str]]) -> list[str]:
    """Name each module whose import alone would load a foreign library that it must not load."""
    found = []
    for start, libraries in never.items():
        for name, chain in _reach(tree, start, eager=True).items() if start in tree else ():
            for touch in tree[name].touches:
                if touch.eager and touch.target.partition(".")[0] in libraries:
                    found.append(f"importing {start} loads {touch.target}: {' -> '.join(chain)}")
    return found


def wrong_doors(tree: Tree, doors: Mapping[str, str]) -> list[str]:
    """Name each use of a foreign library outside the one module or room that may touch it."""
    return [
        f"{module.at(touch.line)}: {touch.target} is touched; only {door} may"
        for module in tree.values()
        for touch in module.touches
        for library, door in doors.items()
        if _within(touch.target, library) and not _within(module.name, door)
    ]


def wrong_code(tree: Tree) -> list[str]:
    """Name everything that would run code while reading data, or import a name made at run time."""
    return [
        f"{module.at(line)}: {what}" for module in tree.values() for line, what in sorted(_executing(module))
    ]


def wrong_private(tree: Tree, doors: Collection[str]) -> list[str]:
    """Name each private attribute that is used in a module that does not define it."""
    found = []
    for module in tree.values():
        if any(_within(module.name, door) for door in doors):
            continue
        own = DOCUMENTED_PRIVATE | _defined(module.tree)
        for node in ast.walk(module.tree):
            name = _attribute_name(node)
            if name and name.startswith("_") and not name.endswith("__") and name not in own:
                found.append(f"{module.at(node.lineno)}: {name} is private to another module")
    return found


def too_long(tree: Tree, limit: int) -> list[str]:
    """Name each module that has more lines than the limit."""
    return [f"{m.path}: {m.lines} lines, at most {limit}" for m in tree.values() if m.lines > limit]


def shadowed(tree: Tree, public: Collection[str]) -> list[str]:
    """Name each submodule that would take the place of a public name once it is imported."""
    return [f"{m.path} shadows the public name {m.room}" for m in tree.values() if m.room in public]


def _dotted(package: Path, file: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _lazy_names(tree: ast.Module) -> dict[str, str]:
    """Return the package's own table of public names and the modules that hold them."""
    for node in tree.body:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and node.target.id == "_HOMES"
        ):
            return dict(ast.literal_eval(node.value or ast.Dict([], [])))
    return {}


def _resolve(target: str, modules: Collection[str], homes: Mapping[str, str]) -> str:
    """Return the longest part of `target` that is a module here, or `target` itself if it is foreign."""
    package, _, rest = target.partition(".")
    if package in modules and rest in homes and target not in modules:
        return homes[rest]
    if rest == "__version__":
        return target
    name = target
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or target


def _touches(tree: ast.Module, name: str, is_package: bool) -> Iterator[tuple[int, str, bool]]:
    bound: dict[str, str] = {}
    nodes = list(_walk(tree, eager=True))
    for node, eager in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                bound[alias.asname or root] = alias.name if alias.asname else root
                yield node.lineno, alias.name, eager
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".") + ([] if not is_package else [""])
            base = ".".join([*parts[: -node.level], node.module or ""] if node.level else [node.module or ""])
            for alias in node.names:
                target = f"{base.strip('.')}.{alias.name}"
                bound[alias.asname or alias.name] = target
                yield node.lineno, target, eager
    for node, eager in nodes:
        if isinstance(node, ast.Call) and _call_name(node) in {"import_module", "__import__"}:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value, eager
        elif isinstance(node, ast.Attribute):
            chain = _chain(node)
            if chain and chain[0] in bound:
                yield node.lineno, ".".join([bound[chain[0]], *chain[1:]]), eager


def _walk(node: ast.AST, eager: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Walk a tree and say of each node whether it runs when the module is imported."""
    yield node, eager
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        for child in node.body:
            yield from _walk(child, eager=False)
        for child in node.orelse:
            yield from _walk(child, eager)
        return
    inner = eager and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, inner)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _chain(node: ast.expr) -> list[str]:
    """Return the names of `a.b.c`, or nothing when it does not start with a plain name."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _call_name(node: ast.Call) -> str:
    func = node.func
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


def _reach(tree: Tree, start: str, eager: bool) -> dict[str, list[str]]:
    """Return each module that imports lead to from `start`, with the chain that leads there."""
    chains, queue = {start: [start]}, [start]
    while queue:
        name = queue.pop(0)
        targets = [t.target for t in tree[name].touches if t.eager or not eager]
        for target in [*targets, *_parents(targets)] if eager else targets:
            if target in tree and target not in chains:
                chains[target] = [*chains[name], target]
                queue.append(target)
    return chains


def _parents(targets: list[str]) -> list[str]:
    """Return the packages that Python runs on the way to each target."""
    return [".".join(parts[:n]) for t in targets for parts in [t.split(".")] for n in range(1, len(parts))]


def _executing(module: Module) -> Iterator[tuple[int, str]]:
    for touch in module.touches:
        if touch.target.partition(".")[0] in EXECUTES:
            yield touch.line, f"{touch.target} can run code while it reads"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in EXECUTING_ATTRIBUTES:
            yield node.lineno, f"{node.attr} can run code while it reads"
        if not isinstance(node, ast.Call):
            continue
        chain = _chain(node.func)
        if chain and chain[-1] in EXECUTING_CALLS and chain[:-1] in ([], ["builtins"]):
            yield node.lineno, f"{chain[-1]}() runs text as code"
        if _call_name(node) == "import_module" and not isinstance(node.args[0], ast.Constant) and module.room:
            yield node.lineno, "import_module() of a name made at run time"
        for keyword in node.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if (keyword.arg == "allow_pickle" and value is not False) or (
                keyword.arg == "safe_mode" and value is not True
            ):
                yield node.lineno, f"{keyword.arg} lets reading run code"


def _defined(tree: ast.Module) -> set[str]:
    """Return every name that a module defines itself: functions, classes, variables and attributes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=asname):
                names.add(asname or name)
    return names


def _attribute_name(node: ast.AST) -> str | None:
    """Return the attribute that a node reads or sets, also through `getattr` and its kin."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call) and _call_name(node) in {"getattr", "setattr", "hasattr", "delattr"}:
        name = node.args[1] if len(node.args) > 1 else None
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return name.value
    return None
