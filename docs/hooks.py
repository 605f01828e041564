"""Hooks of the documentation's build: a public name without an API page stops it; README.md is the home page.

Names are read from the source, so that the build needs neither Keras nor JAX.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
EXAMPLE = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)
EXAMPLE_HERE = "<!-- the example of README.md -->"


def public_names(package: Path) -> set[str]:
    """Return the dotted public names of the package: its own, its errors' and those of `testing`."""
    names = {f"{package.name}.{name}" for name in _listed(package / "__init__.py")}
    errors = ast.parse((package / "errors.py").read_text())
    names |= {f"{package.name}.{node.name}" for node in errors.body if isinstance(node, ast.ClassDef)}
    testing = package / "testing.py"
    if testing.exists():
        names |= {f"{package.name}.testing.{name}" for name in _listed(testing)}
    return names


def documented_names(pages: Path) -> set[str]:
    """Return the dotted names that the API pages document."""
    return {name for page in sorted(pages.glob("*.md")) for name in DIRECTIVE.findall(page.read_text())}


def undocumented(package: Path, pages: Path) -> list[str]:
    """Return the public names that no API page documents.

    Example:
        >>> undocumented(Path("xptrain"), Path("docs/api"))
        []
    """
    return sorted(public_names(package) - documented_names(pages))


def on_pre_build(config: Any) -> None:
    """Stop the build when a public name has no API page."""
    pages = Path(config["docs_dir"])
    missing = undocumented(pages.parent / "xptrain", pages / "api")
    if missing:
        raise PluginError(f"public names without an API page in docs/api: {', '.join(missing)}")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put README.md in the place of the home page, and its example where a page asks for it."""
    readme = (Path(config["docs_dir"]).parent / "README.md").read_text()
    if page.file.src_uri == "index.md":
        return readme.replace("](docs/", "](")
    example = EXAMPLE.search(readme)
    return markdown.replace(EXAMPLE_HERE, example[0]) if example else markdown


def _listed(file: Path) -> list[str]:
    """Return the names in a module's `__all__`, which must be a plain list of strings."""
    for node in ast.parse(file.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    raise PluginError(f"{file} has no __all__")
