"""Are files found that look like secrets, and only those?"""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.content.ignore import IgnoreRules
from harch.content.packing import scan
from harch.content.secret_files import READ_BYTES_MAX, secrets_in

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk=\n-----END OPENSSH PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def found_in(folder: Path, files: dict[str, str]) -> list[str]:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return secrets_in(scan(folder, rules=IgnoreRules(), bytes_max=1 << 30, entries_max=1000))


@pytest.mark.parametrize(
    "path",
    [
        ".env", "app/.env", ".env.production", "id_rsa", ".ssh/id_ed25519", ".netrc", ".pgpass", ".aws/credentials",
        "home/.kube/config", "kubeconfig", "prod.kubeconfig", ".git-credentials", "keys.p12", "store.jks",
        ".streamlit/secrets.toml", ".cache/huggingface/token", "kaggle.json", "terraform.tfstate",
    ],
)  # fmt: skip
def test_names_that_tools_give_their_secrets_are_enough(tmp_path: Path, path: str) -> None:
    assert found_in(tmp_path, {path: "anything"}) == [path]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("server.pem", CERTIFICATE + KEY),
        ("deploy_key", KEY),
        ("tls.key", KEY.replace("OPENSSH ", "")),
        ("backup.asc", KEY.replace("OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK")),
        (
            "conf/service-account.json",
            '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\nMII"}',
        ),
        (".npmrc", "//registry.example/:_authToken=abc\n"),
        (".pypirc", "[pypi]\nusername = __token__\npassword = abc\n"),
        ("prod.env", "DB_PASSWORD=abc\n"),
        (".envrc", "export API_KEY=abc\n"),
        (".docker/config.json", '{"auths": {"registry.example": {"auth": "abc"}}}'),
    ],
)
def test_where_the_name_says_too_little_the_content_decides(tmp_path: Path, path: str, content: str) -> None:
    assert found_in(tmp_path, {path: content}) == [path]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("ca.pem", CERTIFICATE),
        (".env.example", "API_KEY=\n"),
        ("config/.env.template", "PASSWORD=change-me\n"),
        ("id_rsa.pub", "ssh-ed25519 AAAA"),
        (".env", ""),
        (".npmrc", "save-exact=true\n"),
        ("prod.env", "WORKERS=4\n"),
        (".envrc", "use flake\n"),
        ("keyboard.py", "KEY = 1\n"),
        ("service.json", '{"port": 8080}'),
        (".docker/config.json", '{"credsStore": "pass"}'),
        ("tests/test_keys.py", f'KEY = """{KEY}"""'),
        ("environment.yml", "name: x"),
        ("Makefile", "all:"),
    ],
)
def test_what_only_looks_a_little_like_a_secret_is_none(tmp_path: Path, path: str, content: str) -> None:
    assert found_in(tmp_path, {path: content}) == []


def test_they_are_sorted_and_what_is_left_out_is_not_among_them(tmp_path: Path) -> None:
    files = {"b/.env": "x", "a/id_rsa": "x", "c/.netrc": "x", ".harchignore": "c/\n", "train.py": "x"}
    assert found_in(tmp_path, files) == ["a/id_rsa", "b/.env"]


def test_of_a_large_file_only_the_beginning_is_read(tmp_path: Path) -> None:
    assert found_in(tmp_path, {"large_key": "x" * READ_BYTES_MAX + KEY}) == []


def test_a_link_that_takes_the_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "private").write_text(KEY)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "some_key").write_text("x")
    scanned = scan(folder, rules=None, bytes_max=1 << 30, entries_max=10)
    (folder / "some_key").unlink()
    (folder / "some_key").symlink_to(tmp_path / "private")
    assert secrets_in(scanned) == []
