"""Installed packages: a real virtual environment, marks without credentials, what moves bits."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from xptrain.provenance.packages import bit_movers, capture_packages, normal_name


def install(site: Path, name: str, version: str, direct_url: dict | None = None) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(json.dumps(direct_url))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of a real environment, with packages of every origin in pip's own format."""
    root = tmp_path_factory.mktemp("env")
    venv.create(root / "env", with_pip=False)
    python = root / "env" / "bin" / "python"
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    folder = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    install(folder, "numpy", "2.1.0")
    install(folder, "My_Pkg", "0.3", {"url": "file:///home/bob/my_pkg", "dir_info": {"editable": True}})
    install(folder, "wheel-file", "1.0", {"url": "file:///tmp/x.whl", "archive_info": {}})
    archive = {"url": "https://bob:pw0secret@pypi.corp.example/x-2.0.zip?token=q0secret", "archive_info": {}}
    install(folder, "from-archive", "2.0", archive)
    vcs = {"vcs": "git", "commit_id": "abc123"}
    install(folder, "from-vcs", "3.0", {"url": "https://tok0secret@github.com/a/b.git", "vcs_info": vcs})
    install(folder, "broken-origin", "4.0")
    (folder / "broken_origin-4.0.dist-info" / "direct_url.json").write_text("{")
    (folder / "~umpy-1.0.dist-info").mkdir()
    return folder


def test_requirements_name_every_package_once_with_its_origin(site: Path) -> None:
    found = capture_packages([str(site)])
    assert found["requirements"].splitlines() == [
        "broken-origin==4.0  # origin unreadable",
        "from-archive==2.0  # archive",
        "from-vcs==3.0  # git+https://github.com/a/b.git@abc123",
        "my-pkg==0.3  # editable",
        "numpy==2.1.0",
        "wheel-file==1.0  # local",
    ]
    assert found["installed"]["my-pkg"] == "0.3"
    assert found["bit_movers"] == {"numpy": "2.1.0"}


def test_no_credentials_and_no_registry_host(site: Path) -> None:
    text = json.dumps(capture_packages([str(site)]))
    assert "0secret" not in text and "corp" not in text and "/home/bob" not in text


def test_the_first_of_two_on_the_path_is_the_one_imported(site: Path, tmp_path: Path) -> None:
    install(tmp_path, "numpy", "9.9")
    assert capture_packages([str(tmp_path), str(site)])["installed"]["numpy"] == "9.9"


def test_a_broken_left_over_is_passed_over_also_by_the_backport(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.metadata

    class Broken(importlib.metadata.PathDistribution):
        @property
        def metadata(self) -> Any:
            raise FileNotFoundError("No package metadata was found.")

    whole = list(importlib.metadata.distributions(path=[str(site)]))
    broken = Broken(site / "~umpy-1.0.dist-info")
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: [broken, *whole])
    assert capture_packages([str(site)])["installed"]["my-pkg"] == "0.3"


def test_this_environment() -> None:
    import importlib.metadata

    found = capture_packages()
    assert found["bit_movers"]["jaxlib"] == importlib.metadata.version("jaxlib")
    assert found["python"]["version"] == ".".join(map(str, sys.version_info[:3]))


def test_plugins_and_cuda_libraries_move_bits() -> None:
    names = ["jax-cuda12-plugin", "nvidia-cudnn-cu12", "jax", "pandas", "ml-dtypes", "libtpu"]
    assert set(bit_movers(dict.fromkeys(names, "1"))) == set(names) - {"pandas"}
    assert normal_name("ML_Dtypes") == "ml-dtypes"
