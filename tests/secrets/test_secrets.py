"""Secrets never reach a record: by value, by name, by file."""

from __future__ import annotations

import json
import string
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from xptrain.secrets.names import is_secret_name
from xptrain.secrets.redact import (
    REDACTED,
    is_secret_file,
    redact_argv,
    redact_mapping,
    redact_text,
)

ALNUM = string.ascii_letters + string.digits
KEY = "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----"


def token(size: int) -> st.SearchStrategy[str]:
    return st.text(ALNUM, min_size=size, max_size=size)


# Values that must go wherever they stand, with the part that must not survive.
VALUES = st.one_of(
    token(36).map(lambda t: (f"ghp_{t}", t)),
    token(30).map(lambda t: (f"hf_{t}", t)),
    token(40).map(lambda t: (f"sk-{t}", t)),
    st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map(lambda t: (f"AKIA{t}", t)),
    st.tuples(token(20), token(20), token(20)).map(lambda t: (f"eyJ{t[0]}.eyJ{t[1]}.{t[2]}", t[2])),
    token(64).map(lambda t: (KEY.format(t), t)),
    token(12).map(lambda t: (f"postgresql://bob:{t}@db.example.com/x", t)),
    token(24).map(lambda t: (f"https://{t}@github.com/x/y.git", t)),
    token(24).map(lambda t: (f"https://x.example.com/a?token={t}&b=1", t)),
    token(32).map(lambda t: (f"Authorization: Bearer 9{t}", t)),
    token(40).map(lambda t: (f"AccountName=a;AccountKey={t}==", t)),
)
SECRET_NAMES = """password db_password HF_TOKEN WANDB_API_KEY apiKey client_secret credentials accessToken
    MY_KEY --api-key auth_token DB_PASS"""
NAMES = st.sampled_from(SECRET_NAMES.split())
# What stands around a value in code, diffs, YAML, dotenv files and commands.
PLACES = st.sampled_from(
    [
        '{n} = "{v}"',
        "{n}: str = '{v}'",
        '+    {n}="{v}",',
        '{{"{n}": "{v}", "user": "bob"}}',
        'os.environ["{n}"] = "{v}"',
        'login({n}=SecretStr("{v}"))',
        '{n} = (\n-    "{v}"\n)',
        '"{{\\"{n}\\": \\"{v}\\"}}"',
    ]
)
PLAIN_PLACES = st.sampled_from(["{n}={v}", "{n}: {v}", "export {n}={v}\nx=1"])
NOISE = st.text(string.ascii_letters + " \n=:'\"()+-/@{}[],.0123456789", max_size=60)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(value=VALUES, before=NOISE, after=NOISE, name=st.sampled_from(["", "a.py", "b.yaml"]))
def test_a_known_kind_of_secret_never_survives(
    value: tuple[str, str], before: str, after: str, name: str
) -> None:
    whole, core = value
    assume(core not in before + after)
    shown, notes = redact_text(f"{before}\n{whole}\n{after}", name)
    assert core not in shown
    assert notes


@settings(max_examples=300, deadline=None)
@given(
    name=NAMES,
    secret=token(14),
    place=PLACES,
    before=NOISE.map(lambda t: t.replace('"', "").replace("'", "")),
)
def test_a_literal_under_a_secret_name_never_survives(
    name: str, secret: str, place: str, before: str
) -> None:
    assume(secret not in before)
    variable = name.lstrip("-").replace("-", "_")
    shown, notes = redact_text(f"{before}\n{place.format(n=variable, v=secret)}\n", "train.py")
    assert secret not in shown
    assert notes


@settings(max_examples=200, deadline=None)
@given(name=NAMES, secret=token(14), place=PLAIN_PLACES)
def test_an_unquoted_value_in_other_files_never_survives(name: str, secret: str, place: str) -> None:
    assert secret not in redact_text(place.format(n=name, v=secret), "settings.yaml")[0]


@settings(max_examples=200, deadline=None)
@given(text=NOISE, value=VALUES)
def test_redacting_twice_changes_nothing_more(text: str, value: tuple[str, str]) -> None:
    once = redact_text(f"{text}\npassword: x1\n{value[0]}\n")[0]
    assert redact_text(once)[0] == once


NESTED = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.none(), st.text("ab c", max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    rest=NESTED, name=NAMES, secret=token(14), shape=st.sampled_from(["v", "[v]", "{'x': v}", "{'x': [v]}"])
)
def test_a_secret_in_nested_settings_never_survives(rest: object, name: str, secret: str, shape: str) -> None:
    value = {"v": secret, "[v]": [secret], "{'x': v}": {"x": secret}, "{'x': [v]}": {"x": [secret]}}[shape]
    shown, notes = redact_mapping({"model": {"rest": rest, name: value}})
    assert secret not in json.dumps(shown)
    assert notes and notes[0].startswith("model.")
    assert shown["model"]["rest"] == rest


HARMLESS = [
    'tokenizer = AutoTokenizer("bert")',
    'model.add(Dense(10, name="key_proj"))',
    'pad_token = "[PAD]"',
    "key = jax.random.key(0)",
    'label_key = "y"',
    'HF_TOKEN = os.environ["HF_TOKEN"]',
    'API_KEY = os.getenv("API_KEY")',
    "x @ y  # a: b",
    'if key == "a": pass',
    'url = "ssh://git@github.com/x/y.git"',
    "monkey: 3",
    'author = "Ada"',
]


@pytest.mark.parametrize("line", HARMLESS)
def test_words_of_the_trade_stay(line: str) -> None:
    assert redact_text(line, "train.py") == (line, [])


def test_numbers_under_token_names_stay_in_settings() -> None:
    config = {
        "max_tokens": 512,
        "token": 7,
        "key_dim": 64,
        "use_auth": True,
        "pad_token": "[PAD]",
        "none_key": None,
    }
    assert redact_mapping(config) == (config, [])


def test_a_numeric_password_goes() -> None:
    assert redact_mapping({"password": 1234})[0] == {"password": REDACTED}


def test_every_part_of_a_literal_goes() -> None:
    shown, _ = redact_text(
        'API_KEYS = ["abc1", "def2"]\npassword = "gh\\"i3" + "jk4"\nsecret = """l\nm5"""', "a.py"
    )
    assert not [part for part in ("abc1", "def2", "i3", "jk4", "m5") if part in shown]


def test_a_key_cut_by_a_hunk_goes_at_both_ends() -> None:
    body = "".join(f"+{'QUJD' * 16}\n" for _ in range(5))
    head, _ = redact_text(f"+-----BEGIN PRIVATE KEY-----\n{body}")
    tail, notes = redact_text(f"@@ -1 +1 @@\n{body}+-----END PRIVATE KEY-----\n+x = 1\n")
    assert "QUJD" not in head + tail
    assert "x = 1" in tail
    assert notes == ["private key"]


def test_arguments_lose_the_value_after_their_option() -> None:
    shown, notes = redact_argv(
        ["train.py", "--api-key", "abc", "--token=def", "--epochs", "3", "--pad-token", "[PAD]"]
    )
    assert shown == [
        "train.py",
        "--api-key",
        REDACTED,
        f"--token={REDACTED}",
        "--epochs",
        "3",
        "--pad-token",
        "[PAD]",
    ]
    assert "api-key" in notes


SECRET_FILES = """.env .env.local prod.env a/server.pem id_rsa id_ed25519 .netrc secrets.yaml x.key
    .aws/config credentials.json service-account-1.json kaggle.json .ssh/config my_secret.json"""


@pytest.mark.parametrize("name", SECRET_FILES.split())
def test_files_of_secrets_are_known_by_name(name: str) -> None:
    assert is_secret_file(name)


@pytest.mark.parametrize(
    "name", ["train.py", "environment.yml", "id_rsa.pub", "keys.py", "monkey.py", "env.py"]
)
def test_other_files_are_not(name: str) -> None:
    assert not is_secret_file(name)


@pytest.mark.parametrize(
    "name", ["tokenizer", "n_tokens", "key", "primary_key", "author", "passage", "compass", ""]
)
def test_other_names_are_not_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.fixture
def time_limit() -> Iterator[None]:
    """Fail a test that takes more than 5 seconds of processor time, whatever else the machine does."""
    started = time.process_time()
    yield
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "evil", ["password='" + "\\" * 50_000, 'password="' * 20_000, "a://" * 50_000, "QUJD" * 50_000]
)
def test_no_text_takes_long(evil: str, time_limit: object) -> None:
    redact_text(evil)
