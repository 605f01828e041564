"""Without PyTorch there is nothing to test here: see `make torch-tests`."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
