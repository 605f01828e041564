"""Which values are secrets, by their names and by their looks: one rule for everything that is kept."""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from xptrain.secrets.patterns import VALUES


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SECRET_WORDS: Final = _words(
    "password passwords passwd passphrase passcode secret secrets credential credentials apikey apikeys"
    " apitoken authtoken accesstoken secretkey privatekey accesskey connectionstring"
    " auth authorization bearer cookie"
)
# A name that ends in one of these is secret, unless the word before it says that it is not one.
SECRET_ENDINGS: Final = _words("token key pat sas pwd pass tokens keys")
KEY_OWNERS: Final = _words(
    "api access secret private auth account encryption signing ssh gpg aws azure gcp google openai hf"
    " wandb mlflow storage service client master deploy license subscription admin user server"
    " db database smtp mail root redis postgres mysql mongo"
)
HARMLESS_TOKENS: Final = _words(
    "pad mask cls sep bos eos unk oov start end stop special begin image next last first prefix suffix"
    " separator newline space per any no num max min class sos go query"
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@lru_cache(maxsize=65536)
def is_secret_name(name: str) -> bool:
    """Say whether a setting, variable or option of this name holds a secret.

    Args:
        name: Such as `db_password`, `HF_TOKEN`, `--api-key` or `openaiApiKey`.

    Returns:
        True for names of secrets; False for words of the trade such as `pad_token` or `max_tokens`.

    Example:
        >>> [is_secret_name(n) for n in ("HF_TOKEN", "apiKey", "pad_token", "label_key", "max_tokens")]
        [True, True, False, False, False]
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    if SECRET_WORDS.intersection(words) or "".join(words[-2:]) in SECRET_WORDS:
        return True
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last not in SECRET_ENDINGS:
        return False
    if last == "token":
        return before not in HARMLESS_TOKENS
    shouted = name.strip("-").isupper() and before not in HARMLESS_TOKENS | {"", "public", "primary"}
    return before in KEY_OWNERS or (shouted and last not in {"tokens", "keys"})


def is_strong_secret_name(name: str) -> bool:
    """Say whether a name holds a word such as `password`, under which even a number is a secret."""
    return bool(SECRET_WORDS.intersection(word.lower() for word in _WORDS.findall(name)))


def holds_secret(name: str, value: Any) -> bool:
    """Say whether a value of this name, or anything in it, is a secret by its name or by its looks.

    Numbers are secrets only under words such as `password`: a `token` may well be counted.

    Example:
        >>> [holds_secret("api_token", "abc"), holds_secret("args", {"headers": {"Authorization": "x"}})]
        [True, True]
    """
    return _holds_secret(name, value, "", set())


@lru_cache(maxsize=65536)
def _looks_secret(value: str | bytes) -> bool:
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    return any(pattern.search(text) for _, pattern in VALUES)


def _holds_secret(name: str, value: Any, outside: str, seen: set[int]) -> bool:
    if value is None or isinstance(value, bool) or id(value) in seen:
        return False
    if isinstance(value, (str, bytes)):
        return bool(value) and (is_secret_name(name) or bool(outside) or _looks_secret(value))
    if isinstance(value, (int, float)):
        return is_strong_secret_name(name) or is_strong_secret_name(outside)
    seen.add(id(value))
    # Everything below a name such as `credentials` is secret, whatever it is called.
    below = name if is_secret_name(name) else outside
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value) if hasattr(value, "__dict__") else {}
    if isinstance(value, Mapping):
        named = [(key if isinstance(key, str) else "", item) for key, item in value.items()]
        return any(_holds_secret(key, item, below, seen) for key, item in named)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        # A history is long and holds numbers only.
        items = value if below else (item for item in value if type(item) not in (int, float))
        return any(_holds_secret("", item, below, seen) for item in items)
    home = type(value).__module__.partition(".")[0]
    return bool(below) and not callable(value) and home not in ("numpy", "jax", "jaxlib", "keras")
