"""What an environment is made of: equal contents make equal keys, and nothing of one task gets into those of others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.execution.content.environment_inputs import key_of, lock_is_local, parse_requirements, read_inputs
from harch.execution.content.pythons import Python, choose, find_pythons, own_python, versions
from harch.workloads.spec import Environment


@pytest.mark.parametrize(
    "line",
    [
        "numpy", "numpy>=2  # newest", "torch==2.9.0+cpu ; python_version < '3.13'", "pkg[extra]>=1",
        "pkg @ https://host.example/pkg-1.0.whl", "git+https://host.example/team/pkg@main", "# ./commented",
        "--index-url https://host.example/simple", "--find-links https://host.example/wheels", "",
    ],
)  # fmt: skip
def test_what_others_can_fetch_too_is_not_local(line):
    assert not parse_requirements(line).is_local


@pytest.mark.parametrize(
    "line",
    [
        ".", "./lib", "../lib", "lib/sub", "-e .", "-e lib", "--editable=./lib", "pkg-1.0-py3-none-any.whl",
        "wheels/pkg-1.0.tar.gz", "file:///work/pkg", "pkg @ file:///work/pkg", "pkg @ ./lib", "-f wheels", "~/pkg",
        "numpy\n-e .", "numpy \\\n  \n./lib", "${PWD}/lib",
    ],
)  # fmt: skip
def test_what_lies_in_the_code_is_local(line):
    assert parse_requirements(line).is_local


def test_included_files_are_found_in_every_spelling():
    text = "-r base.txt\n-rmore.txt\n--requirement deep/x.txt\n--requirement=y.txt\n"
    text += "-c 'limits.txt'\n--constraint c.txt\nnumpy"
    found = parse_requirements(text)
    assert found.includes == ("base.txt", "more.txt", "deep/x.txt", "y.txt", "limits.txt", "c.txt")
    assert not found.is_local


def write(folder: Path, **contents: str) -> Path:
    for name, content in contents.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def key(folder: Path, environment: Environment) -> str:
    return key_of({"python": "3.12.3"}, read_inputs(environment, folder))


REQUIREMENTS = Environment(requirements="deep/requirements.txt", wheels="wheels")


@pytest.fixture
def code(tmp_path) -> Path:
    return write(
        tmp_path / "code",
        deep__requirements_txt="-r ../base.txt\n-c limits.txt\nnumpy",
        base_txt="scipy",
        deep__limits_txt="scipy<2",
        wheels__one_whl="one",
        train_py="print()",
    )


def test_equal_contents_make_equal_keys_wherever_they_lie(code, tmp_path):
    before = key(code, REQUIREMENTS)
    (code / "train.py").write_text("print(2)")
    os.utime(code / "base.txt", (1, 1))
    code.rename(tmp_path / "elsewhere")
    assert key(tmp_path / "elsewhere", REQUIREMENTS) == before


@pytest.mark.parametrize("changed", ["deep/requirements.txt", "base.txt", "deep/limits.txt", "wheels/one.whl"])
def test_any_file_that_takes_part_makes_another_key(code, changed):
    before = key(code, REQUIREMENTS)
    (code / changed).write_text((code / changed).read_text() + "\n# x")
    assert key(code, REQUIREMENTS) != before


def test_another_wheel_list_of_packages_or_python_makes_another_key(code):
    before = key(code, REQUIREMENTS)
    write(code, wheels__two_whl="two")
    assert key(code, REQUIREMENTS) != before
    inputs = read_inputs(Environment(packages=("a", "b")), code)
    assert key_of({}, inputs) != key_of({}, read_inputs(Environment(packages=("ab",)), code))
    assert key_of({}, inputs) != key_of({"python": "3.13"}, inputs)


def test_a_link_inside_of_the_code_is_followed_and_one_out_of_it_is_not(code, tmp_path):
    (tmp_path / "outside.txt").write_text("private")
    (code / "inside.txt").symlink_to("base.txt")
    (code / "outside.txt").symlink_to("../outside.txt")
    (code / "folder").symlink_to(tmp_path)
    assert dict(read_inputs(Environment(requirements="inside.txt"), code).parts) == {"inside.txt": b"scipy"}
    for path in ("outside.txt", "folder/outside.txt"):
        with pytest.raises(HarchError, match="leads out of the code") as caught:
            read_inputs(Environment(requirements=path), code)
        assert caught.value.code == "E1120"
        assert "private" not in str(caught.value)
    write(code, deep__requirements_txt="-r ../../outside.txt")
    with pytest.raises(HarchError, match="leads out of the code"):
        read_inputs(REQUIREMENTS, code)


def test_lists_that_never_end_are_refused(code):
    for number in range(110):
        write(code, **{f"r{number}_txt": f"-r r{number + 1}.txt"})
    with pytest.raises(HarchError, match="leads to more than 100 files"):
        read_inputs(Environment(requirements="r0.txt"), code)
    write(code, loop_txt="-r loop.txt")
    assert len(read_inputs(Environment(requirements="loop.txt"), code).parts) == 1


def lock(source: str) -> bytes:
    own = '[[package]]\nname = "own"\nsource = { editable = "." }\n'
    return f'[[package]]\nname = "a"\nsource = {{ {source} }}\n{own}'.encode()


def test_a_lock_is_local_if_it_names_more_of_the_code_than_the_project():
    assert not lock_is_local(lock('registry = "https://host.example/simple"'))
    for source in ('editable = "lib"', 'directory = "lib"', 'path = "a.whl"', 'virtual = "lib"'):
        assert lock_is_local(lock(source)), source
    for nonsense in (b"[", b"package = 1", b"\xff"):
        with pytest.raises(HarchError, match=r"uv\.lock cannot be read"):
            lock_is_local(nonsense)


def test_a_lock_counts_with_its_project_and_settings(code):
    write(code, sub__uv_lock=lock('registry = "x"').decode(), sub__pyproject_toml="[project]")
    environment = Environment(lock="sub/uv.lock")
    before = key(code, environment)
    write(code, sub__uv_toml="offline = true")
    changed = key(code, environment)
    write(code, sub__pyproject_toml="[project]\n")
    assert len({before, changed, key(code, environment)}) == 3
    (code / "sub" / "pyproject.toml").unlink()
    with pytest.raises(HarchError, match=r"`sub/pyproject.toml` of the code cannot be read: No such file"):
        read_inputs(environment, code)


# Pythons


def python(version: str) -> Python:
    return Python(version, "cpython", f"/opt/{version}/bin/python", f"/opt/{version}")


OWN, FOUND = python("3.11.7"), [python(one) for one in ("3.9.1", "3.12.10", "3.12.9", "3.1.4")]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [(None, "3.11.7"), ("3.11", "3.11.7"), ("3.12", "3.12.10"), ("3.12.9", "3.12.9"), ("3.1", "3.1.4"), ("3.13", None)],
)
def test_the_newest_of_the_wanted_version_is_taken(wanted, chosen):
    found = choose(wanted, OWN, FOUND)
    assert (found.version if found else None) == chosen


def test_versions_are_listed_in_order():
    assert versions([*FOUND, OWN, OWN]) == "3.1.4, 3.9.1, 3.11.7, 3.12.9, 3.12.10"


def test_pythons_are_found_by_asking_them(tmp_path):
    def program(path: str, body: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)

    program("bin/python3.12", "printf '3.12.3\\ncpython\\n/opt/bin/python3.12\\n/opt\\n'")
    program("bin/python3.13", "echo broken; exit 1")
    program("bin/python3.10", "printf '3.10.1\\npypy\\n/opt/bin/pypy\\n/opt\\n'")
    program("bin/python3.13t", "touch $(dirname $0)/asked")
    program("shims/python3.9", "touch $(dirname $0)/../bin/asked")
    program("pyenv/versions/3.14.0/bin/python3.14", "printf '3.14.0\\ncpython\\n/p/bin/python3.14\\n/p\\n'")
    environ = {"PATH": f"{tmp_path}/bin:{tmp_path}/shims", "PYENV_ROOT": f"{tmp_path}/pyenv"}
    found = {one.version: one for one in find_pythons(environ)}
    assert found["3.12.3"] == Python("3.12.3", "cpython", "/opt/bin/python3.12", "/opt")
    assert found["3.14.0"].prefix == "/p"
    assert "3.10.1" not in found
    assert not (tmp_path / "bin" / "asked").exists()


def test_the_agents_own_python_is_the_installation_and_not_its_virtual_environment():
    import sys

    assert own_python().prefix == os.path.realpath(sys.base_prefix)
    assert os.access(own_python().executable, os.X_OK)
