"""What a secret looks like: shapes of values, names of files. Data only.

Sources of the value shapes: the public formats documented by each issuer (for example
https://docs.github.com/en/code-security/secret-scanning/introduction/supported-secret-scanning-patterns).
"""

from __future__ import annotations

import re
from typing import Final

_KEY_BEGIN: Final = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
KEY_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
KEY_LINE: Final = re.compile(r"[ +-]?[A-Za-z0-9+/=]{8,}[ \t]*\r?\n")

# Tokens known by their shape, in one pattern: each more would be one more pass over every text.
_TOKENS: Final = (
    r"eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?",  # JSON web token
    r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Z])",  # AWS
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}",
    r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[\w-]{16,}",  # GitLab
    r"xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}",  # Slack
    r"hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}",  # Hugging Face
    r"sk-[\w-]{16,}|[sr]k_(?:live|test)_\w{10,}",  # OpenAI, Anthropic, Stripe
    r"dapi[0-9a-f]{32}(?!\w)|dop_v1_[0-9a-f]{32,}|nvapi-[\w-]{20,}",  # Databricks, DigitalOcean, NVIDIA
    r"npm_[A-Za-z0-9]{30,}|pypi-[\w-]{16,}|SG\.[\w-]{16,}\.[\w-]{16,}",
    r"AIza[\w-]{35}|ya29\.[\w-]{10,}|GOCSPX-[\w-]{20,}",  # Google
)

# (kind, pattern); a group named `keep` stays, everything else in the match is replaced.
VALUES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("private key", rf"(?s){_KEY_BEGIN}.*?(?:{KEY_END.pattern}|\Z)"),
        ("token", rf"(?<![A-Za-z0-9])(?:{'|'.join(_TOKENS)})"),
        ("webhook", r"https://hooks\.slack\.com/services/[\w/]+"),
        ("webhook", r"https://discord(?:app)?\.com/api/webhooks/[\w/-]+"),
        ("storage key", r"(?P<keep>(?:AccountKey|SharedAccess(?:Key|Signature))=)[\w+/=%&-]{16,}"),
        # Credentials in an address; only a bare user name as in ssh://git@host stays.
        ("URL with credentials", r"(?P<keep>://)[^\s/@:'\"<>]*:[^\s/'\"<>]*(?=@)"),
        ("URL with credentials", r"(?P<keep>https?://)(?!<redacted>@)[^\s/@:'\"]+(?=@)"),
        (
            "signed URL",
            r"(?i)(?P<keep>[?&;](?:[\w-]*token|sig|signature|x-amz-[\w-]*|x-goog-[\w-]*|(?:api[_-]?)?key"
            r"|password|[\w-]*secret)=)(?!<redacted>)[^\s&'\"<>#]+",
        ),
        (
            "authorization header",
            r"(?i)(?P<keep>(?:bearer|basic)[ \t]+)(?=[\w+/=.~-]{0,400}[0-9_=])[\w+/=.~-]{16,}",
        ),
    )
)

SECRET_FILE: Final = re.compile(
    r"""(?ix)^(?:
    \.env(?:rc|\..*)? | .*\.env
    | .*\.(?:pem|key|p12|pfx|jks|keystore|kdbx|ppk|gpg|asc|der|pkcs12|tfvars|tfstate|ovpn)
    | id_(?:rsa|dsa|ecdsa|ed25519)(?:_.*|\.(?!pub$).*)?
    | \.?_?netrc | \.pgpass | \.npmrc | \.yarnrc | \.pypirc | \.my\.cnf | \.s3cfg | \.boto
    | \.git-credentials | \.htpasswd | \.dockercfg | kaggle\.json | kubeconfig
    | (?:secrets?|credentials?|passwords?|tokens?)(?:\.(?:py|json|ya?ml|toml|ini|cfg|conf|txt|csv|sh))?
    | (?:client[_-]?secrets?|service[_-]?account|application_default_credentials).*\.json
    | .*[_-](?:secrets?|credentials?)\.(?:json|ya?ml|toml|ini|cfg|txt)
    )$"""
)
SECRET_FOLDERS: Final = frozenset({".ssh", ".aws", ".gnupg", ".kube", ".azure", ".gcloud", ".secrets"})
