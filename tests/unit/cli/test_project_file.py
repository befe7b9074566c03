"""`harch.toml`: what a project says about how it runs, with the line of every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.cli.content.project import FILE_BYTES_MAX, PROBLEMS_MAX, Project, lines_of, parse_project, read_project

FULL = """
# a project
[code]
limit = "2GB"
include = ["certs/dev.pem"]
countries = ["MA", "SN"]

[environment]
python = "3.12"
requirements = "requirements.txt"

[run]
gpus = 2
gpu_model = "h100-80gb"
memory_gb = 64
image = "registry.example.org/train:1"
artifacts = [{ name = "model", path = "out/model.pt" }]

[run.env]
LEVEL = "debug"
"""


def refused(text: str) -> HarchError:
    with pytest.raises(HarchError) as caught:
        parse_project(text, "harch.toml")
    return caught.value


def test_a_project_says_its_limit_its_environment_and_the_defaults_of_its_runs() -> None:
    project = parse_project(FULL)
    assert (project.limit_bytes, project.include, project.countries) == (
        2_000_000_000,
        ("certs/dev.pem",),
        ("MA", "SN"),
    )
    assert project.environment == {"python": "3.12", "requirements": "requirements.txt"}
    assert project.run == {
        "resources": {"gpus": 2, "gpu_model": "h100-80gb", "memory_gb": 64},
        "image": "registry.example.org/train:1",
        "artifacts": [{"name": "model", "path": "out/model.pt"}],
        "env": {"LEVEL": "debug"},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[code]\n\nlimit = 'much'\n", 'harch.toml:3: code.limit: must be a size, e.g. "500MB"'),
        ("[code]\nlimit = 0", 'harch.toml:2: code.limit: must be a size, e.g. "500MB"'),
        ("[code]\nlimit = true", 'harch.toml:2: code.limit: must be a size, e.g. "500MB"'),
        ("[code]\ninclude = 'a'", "harch.toml:2: code.include: must be a list of paths"),
        ("[code]\ncountries = ['MRO']", "harch.toml:2: code.countries[0]: `MRO` is not valid"),
        ("[code]\nincludes = []", "harch.toml:2: code.includes: unknown key; did you mean `include`?"),
        ("[run]\ngpus = -1\n", "harch.toml:2: run.gpus: expected `int` >= 0"),
        ("[run]\n\ngpu = 1\n", "harch.toml:3: run.gpu: unknown key; did you mean `gpus`?"),
        ("[run]\nname = 'a'\n", "harch.toml:2: run.name: unknown key"),
        ("[run]\n[run.env]\n1A = 'b'\n", "harch.toml:3: run.env.1A: "),
        (
            "[run]\n[[run.artifacts]]\nname = 'a'\npath = '../b'\n",
            "harch.toml:2: run.artifacts[0].path: `../b` is not valid: A path inside the working folder",
        ),
        ("[environment]\npython = '2.7'\n", "harch.toml:2: environment.python: "),
        ("[environment]\npython = 3.10\n", 'harch.toml:2: environment.python: must be in quotes: "3.12"'),
        ("[environment]\npackage = []\n", "environment.package: unknown key; did you mean `packages`?"),
        ("[environ]\npython = '3.12'\n", "harch.toml:1: environ: unknown table; did you mean `environment`?"),
        ("run = 1", "harch.toml:1: run: must be a table: write `[run]`"),
        ("environment.python = 12\n", "harch.toml:1: environment.python: must be in quotes"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(text: str, said: str) -> None:
    error = refused(text)
    assert error.code == "E0201"
    assert said in error.message


def test_files_of_packages_that_exclude_each_other_are_a_mistake_of_their_table() -> None:
    error = refused("[run]\n\n[environment]\nlock = 'uv.lock'\nrequirements = 'requirements.txt'\n")
    assert error.message.startswith("harch.toml:3: environment: `environment.lock` names every package")


def test_all_mistakes_are_told_at_once_and_for_programs() -> None:
    error = refused("[code]\nlimit = 'x'\n[run]\ngpus = 'two'\nimage = ''\n")
    assert error.message.startswith("3 problems\n")
    assert [(one["line"], one["field"]) for one in error.meta["problems"]] == [  # type: ignore[index, union-attr]
        (2, "code.limit"),
        (4, "run.gpus"),
        (5, "run.image"),
    ]


def test_a_file_that_is_no_project_file_at_all_is_not_told_every_line() -> None:
    error = refused("[run]\n" + "".join(f"key{number} = 1\n" for number in range(100)))
    assert error.message.startswith(f"{PROBLEMS_MAX} problems\n")


def test_what_needs_something_else_beside_it_is_checked_with_the_command_and_not_here() -> None:
    assert parse_project("[run]\ngpu_fraction = 0.5\n").run == {"resources": {"gpu_fraction": 0.5}}


def test_what_is_not_toml_is_refused_with_its_line() -> None:
    error = refused("[run]\ngpus = 1\ngpus = = 2\n")
    assert (error.code, error.message.split(" ")[0]) == ("E0202", "harch.toml:3:")


def test_a_folder_without_a_project_file_says_nothing(tmp_path: Path) -> None:
    assert read_project(tmp_path) == Project()


def test_a_project_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "harch.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(HarchError, match=r"harch.toml cannot be read: it is not UTF-8"):
        read_project(tmp_path)
    file.write_text("#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(HarchError, match="is larger than 256 KiB"):
        read_project(tmp_path)


@given(st.dictionaries(st.from_regex("[a-z]{1,8}", fullmatch=True), st.integers(0, 9), max_size=5))
def test_the_line_of_every_key_of_a_table_is_found(keys: dict[str, int]) -> None:
    text = "[run]\n" + "".join(f"\n{key} = {value}" for key, value in keys.items())
    assert {path: line for path, line in lines_of(text).items() if path != "run"} == {
        f"run.{key}": 3 + number for number, key in enumerate(keys)
    }
