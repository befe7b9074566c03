"""Does code travel with a command, and from where?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.cli.content.selection import choose_code, in_code, names_file, unused_environment

Make = Callable[..., None]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def write(*paths: str) -> None:
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text("")

    return write


def travels(*words: str) -> bool:
    return choose_code(words, code=None, no_code=False).folder is not None


@pytest.mark.parametrize("name", ["harch.toml", "pyproject.toml"])
def test_the_folder_of_a_project_travels_whatever_the_command(make: Make, name: str) -> None:
    assert not travels("python", "-c", "1")
    make(name)
    assert travels("python", "-c", "1")


def test_a_command_that_reads_no_files_waits_for_no_code_unless_the_project_is_one_of_harch(make: Make) -> None:
    make("pyproject.toml", "notes.txt")
    assert not travels("echo", "hello")
    assert not travels("/usr/bin/nvidia-smi")
    assert travels("sh", "-c", "echo hello")
    assert travels("env", "A=1", "python", "-c", "1")
    assert travels("printf", "notes.txt"), "it names a file"
    make("harch.toml")
    assert travels("echo", "hello")


@pytest.mark.parametrize(
    "words",
    [
        ("python", "train.py"),
        ("torchrun", "--nproc-per-node", "8", "train.py", "--lr", "1"),
        ("bash", "-x", "scripts/go.sh"),
        ("./run.sh",),
        ("scripts/go.sh",),
        ("python", "-m", "pkg"),
        ("python", "-m", "pkg.train"),
        ("python", "-m", "train"),
        ("tool", "--config=conf.yaml"),
        ("cat", "./conf.yaml"),
    ],
)
def test_a_command_that_names_a_file_of_the_folder_takes_it_along(make: Make, words: tuple[str, ...]) -> None:
    make("train.py", "run.sh", "scripts/go.sh", "pkg/__init__.py", "pkg/train.py", "conf.yaml")
    assert travels(*words)


@pytest.mark.parametrize(
    "words",
    [
        ("echo", "hello"),
        ("python", "other.py"),
        ("train.py",),  # without `/` it is looked for in PATH
        ("ls", "scripts"),
        ("cat", "../outside.txt"),
        ("cat", "/etc/passwd"),
        ("python", "-m", "http.server"),
        ("python", "-m", "../train"),
        ("python", "-c", "a\0b"),
        ("x" * 5000, "y" * 5000),
        (),
    ],
)
def test_a_command_that_names_none_goes_alone(make: Make, tmp_path: Path, words: tuple[str, ...]) -> None:
    make("train.py", "scripts/go.sh")
    (tmp_path / "outside.txt").write_text("")
    assert not travels(*words)


def test_options_that_name_a_file_take_the_folder_along(make: Make) -> None:
    assert choose_code(("python",), code=None, no_code=False, named=["requirements.txt"]).folder == Path()


def test_a_home_folder_travels_only_if_it_is_asked_for(make: Make) -> None:
    make("train.py")
    choice = choose_code(("python", "train.py"), code=None, no_code=False, home=Path.cwd())
    assert (choice.folder, "--code ." in choice.remark) == (None, True)
    assert choose_code(("python", "train.py"), code=".", no_code=False, home=Path.cwd()).folder == Path()


def test_code_that_is_named_travels_and_code_that_is_forbidden_does_not(make: Make) -> None:
    make("harch.toml", "lib/a.py")
    assert choose_code(("true",), code="lib", no_code=False).folder == Path("lib")
    assert choose_code(("true",), code=None, no_code=True).folder is None
    with pytest.raises(HarchError, match="exclude each other"):
        choose_code(("true",), code="lib", no_code=True)
    with pytest.raises(HarchError, match=r"--code lib/a\.py is not a folder"):
        choose_code(("true",), code="lib/a.py", no_code=False)


def test_files_of_packages_are_named_as_the_code_has_them(make: Make, tmp_path: Path) -> None:
    make("sub/requirements.txt", "lib/uv.lock")
    assert in_code("sub/requirements.txt", Path(), "--requirements") == "sub/requirements.txt"
    assert in_code("./lib/../lib/uv.lock", Path("lib"), "--lock") == "uv.lock"
    assert in_code(str(Path("lib/uv.lock").absolute()), Path(), "--lock") == "lib/uv.lock"
    with pytest.raises(HarchError, match=r"--lock lib/uv\.lock is outside of the code in"):
        in_code("lib/uv.lock", Path("sub"), "--lock")
    with pytest.raises(HarchError, match=r"--lock none\.lock does not exist"):
        in_code("none.lock", Path(), "--lock")


def test_a_file_of_packages_that_is_not_used_is_mentioned(make: Make) -> None:
    assert unused_environment(Path()) == ""
    make("requirements.txt")
    assert "`--requirements requirements.txt`" in unused_environment(Path())
    make("uv.lock")
    assert "`--lock uv.lock`" in unused_environment(Path())
    assert names_file(("cat", "uv.lock"), Path())
