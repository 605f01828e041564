"""Names of secrets: one rule for everything that is recorded, and for the state of callbacks."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final


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
