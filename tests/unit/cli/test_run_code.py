"""`harch run` with code: what travels, what is refused before a byte is sent, and what is submitted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from content_hub import ContentHub

from harch.cli.content import sending

Harch = Callable[..., Result]


def write(path: str, content: str | bytes = "") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


def submitted(content: ContentHub) -> dict[str, Any]:
    (spec,) = content.submitted
    return spec


def test_code_is_packed_sent_registered_and_named_by_the_work(harch: Harch, content: ContentHub) -> None:
    write("train.py", "print('hello')\n")
    write("lib/model.py", "x = 1\n")
    write(".gitignore", "data/\n*.log\n")
    write("data/huge.bin", b"0" * 100_000)
    write("old.log")
    result = harch("run", "-d", "--gpus", "1", "--", "python", "train.py")
    assert result.exit_code == 0
    assert result.stdout == "wl_1\n"
    (code,) = content.data
    assert submitted(content)["code"] == code["id"]
    assert (code["kind"], code["name"]) == ("code", f"code-{code['content'][:12]}")
    assert "tag" not in code, "the hub lets it go wherever the work may"
    assert content.files_of(code["content"]) == {
        ".gitignore": b"data/\n*.log\n",
        "lib/model.py": b"x = 1\n",
        "train.py": b"print('hello')\n",
    }
    assert "code: 3 files, 33 B, 5 chunks sent (" in result.stderr


def test_only_what_has_changed_is_sent_again(harch: Harch, content: ContentHub) -> None:
    for number in range(20):
        write(f"part{number}.py", f"x = {number}\n")
    write("train.py", "1\n")
    harch("run", "-d", "--", "python", "train.py")
    first = harch("run", "-d", "--", "python", "train.py")
    assert "21 files, " in first.stderr
    assert " 0 chunks sent (0 B)" in first.stderr
    write("part7.py", "x = 77\n")
    again = harch("run", "-d", "--", "python", "train.py")
    assert " 3 chunks sent" in again.stderr, "the file, the list of files and its root"


def test_a_command_without_code_sends_none(harch: Harch, content: ContentHub) -> None:
    write("notes.txt")
    assert harch("run", "-d", "--", "echo", "hello").exit_code == 0
    write("pyproject.toml")
    assert harch("run", "-d", "--no-code", "--", "python", "-c", "1").exit_code == 0
    assert harch("run", "-d", "--workdir", "/shared", "--", "python", "-c", "1").exit_code == 0
    assert harch("run", "-d", "--modelled-duration", "5s").exit_code == 0
    assert content.asked == ["POST /workloads"] * 4
    assert all("code" not in spec for spec in content.submitted)


def test_another_folder_is_sent_if_it_is_named(harch: Harch, content: ContentHub) -> None:
    write("other/main.py", "1")
    write("harch.toml", "[run]\ngpus = 8\n")
    write("other/harch.toml", "[run]\ngpus = 2\n")
    assert harch("run", "-d", "--code", "other", "--", "python", "main.py").exit_code == 0
    assert sorted(content.files_of(content.data[0]["content"])) == ["harch.toml", "main.py"]
    assert submitted(content)["resources"] == {"gpus": 2}


def test_files_that_look_like_secrets_are_refused_unless_each_is_named(harch: Harch, content: ContentHub) -> None:
    write("train.py")
    write(".env", "TOKEN=abc\n")
    write("keys/id_ed25519", "x")
    result = harch("run", "-d", "--", "python", "train.py")
    assert result.exit_code == 4
    assert "error[E1107]: 2 files of the code look like secrets: .env, keys/id_ed25519" in result.stderr
    assert ".harchignore" in result.stderr
    assert content.asked == []
    one = harch("run", "-d", "--include-secret", ".env", "--", "python", "train.py")
    assert "1 file of the code looks like secrets: keys/id_ed25519" in one.stderr
    write("harch.toml", '[code]\ninclude = ["keys/id_ed25519"]\n')
    assert harch("run", "-d", "--include-secret", ".env", "--", "python", "train.py").exit_code == 0
    assert ".env" in content.files_of(content.data[0]["content"])


def test_too_much_code_is_refused_with_what_is_large_and_every_way_out(harch: Harch, content: ContentHub) -> None:
    write("train.py")
    write("data/big.bin", b"0" * 5000)
    result = harch("run", "-d", "--code-limit", "4kB", "--", "python", "train.py")
    assert result.exit_code == 2
    assert "error[E1108]" in result.stderr
    assert "big.bin" in result.stderr
    assert ".harchignore" in result.stderr
    assert "harch data add NAME --files DIR" in result.stderr
    assert "--code-limit" in result.stderr
    assert content.asked == []
    write("harch.toml", "[code]\nlimit = '4kB'\n")
    assert harch("run", "-d", "--", "python", "train.py").exit_code == 2
    assert harch("run", "-d", "--code-limit", "1MB", "--", "python", "train.py").exit_code == 0


def test_a_mistake_in_the_command_line_is_found_before_anything_is_sent(harch: Harch, content: ContentHub) -> None:
    write("train.py")
    for words, said in (
        (["--gpus", "-1"], "--gpus must be at least 0"),
        (["--artifact", "model"], "--artifact `model` is not NAME=FILE"),
        (["--artifact", "model=../x"], "--artifact `../x` is not valid: A path inside the working folder"),
        (["--keep", "3d"], "--keep is for artifacts, and there are none"),
        (["--artifact", "a=b", "--keep", "11y"], "11y` is not a duration"),
        (["--python", "2.7"], "--python `2.7` is not valid"),
        (["--requirements", "none.txt"], "--requirements none.txt does not exist"),
        (["--requirements", "../train.py"], "is outside of the code in"),
        (["--no-code", "--requirements", "train.py"], "--requirements is a file of the code, and no code is sent"),
        (["--workdir", "/x", "--code", "."], "--workdir and --code exclude each other"),
        (["--code", "nowhere"], "--code nowhere is not a folder"),
        (["--code-limit", "big"], "write e.g. 500MB or 2GB"),
    ):
        result = harch("run", "-d", *words, "--", "python", "train.py")
        assert (result.exit_code, said in result.stderr) == (2, True), (words, result.stderr)
        assert "hint: " in result.stderr
    assert content.asked == []


def test_modelled_work_brings_nothing(harch: Harch, content: ContentHub) -> None:
    write("harch.toml", '[run]\nimage = "a:1"\n')
    for words in (["--python", "3.12"], ["--code", "."], ["--package", "rich"]):
        result = harch("run", "-d", "--modelled-duration", "5s", *words)
        assert (result.exit_code, "it brings nothing" in result.stderr) == (2, True)
    assert harch("run", "-d", "--modelled-duration", "5s", "--no-code").exit_code == 0
    assert "image" not in submitted(content)


def test_an_environment_is_given_by_options_or_by_the_project(harch: Harch, content: ContentHub) -> None:
    write("train.py")
    write("requirements.txt", "numpy\n")
    write("uv.lock")
    write("wheels/a.whl")
    words = ("--python", "3.12", "--requirements", "./requirements.txt", "--index-url", "http://127.0.0.1:9/simple")
    harch("run", "-d", *words, "--", "python", "train.py")
    assert content.submitted[-1]["environment"] == {
        "python": "3.12",
        "requirements": "requirements.txt",
        "index_url": "http://127.0.0.1:9/simple",
    }
    write("harch.toml", '[environment]\nlock = "uv.lock"\npython = "3.11"\nwheels = "./wheels"\n')
    harch("run", "-d", "--", "python", "train.py")
    assert content.submitted[-1]["environment"] == {"python": "3.11", "lock": "uv.lock", "wheels": "./wheels"}
    harch("run", "-d", "--package", "torch>=2", "--package", "rich", "--", "python", "train.py")
    assert content.submitted[-1]["environment"] == {
        "python": "3.11",
        "packages": ["torch>=2", "rich"],
        "wheels": "./wheels",
    }
    harch("run", "-d", "--index-url", "http://127.0.0.1:9/simple", "--", "python", "train.py")
    assert "wheels" not in content.submitted[-1]["environment"]


def test_a_file_of_packages_that_is_left_out_is_noticed_before_the_node_does(harch: Harch, content: ContentHub) -> None:
    write("train.py")
    write("requirements.txt")
    write(".harchignore", "requirements.txt\n")
    result = harch("run", "-d", "--requirements", "requirements.txt", "--", "python", "train.py")
    assert result.exit_code == 2
    assert "requirements.txt is not among the files of the code" in result.stderr
    assert content.asked == []


def test_requirements_beside_the_code_are_mentioned_and_not_used(harch: Harch, content: ContentHub) -> None:
    write("train.py")
    write("requirements.txt", "numpy\n")
    result = harch("run", "-d", "--", "python", "train.py")
    assert "requirements.txt is not installed: add `--requirements requirements.txt`" in result.stderr
    assert "environment" not in submitted(content)
    for words in (["--image", "registry.example.org/a:1"], ["--python", "3.12"], ["--json"]):
        assert "is not installed" not in harch("run", "-d", *words, "--", "python", "train.py").stderr


def test_what_is_typed_goes_before_what_the_project_says(harch: Harch, content: ContentHub) -> None:
    write(
        "harch.toml",
        """
[run]
gpus = 4
gpu_model = "h100-80gb"
cpus = 8
image = "registry.example.org/a:1"
countries_allowed = ["MA", "SN"]
artifacts = [{ name = "model", path = "out/model.pt" }]
env = { A = "1", B = "2" }
priority = "high"
""",
    )
    harch("run", "-d", "--", "true")
    spec = content.submitted[-1]
    assert spec["resources"] == {"gpus": 4, "gpu_model": "h100-80gb", "cpus": 8}
    assert (spec["image"], spec["priority"]) == ("registry.example.org/a:1", "high")
    assert spec["countries_allowed"] == ["MA", "SN"]
    assert spec["artifacts"] == [{"name": "model", "path": "out/model.pt"}]
    words = ("--gpu-models", "a100|l40s", "--cpus", "2", "-e", "B=3", "--image", "b:2", "--country", "ci")
    harch("run", "-d", *words, "--artifact", "log=out/log.txt", "--keep", "2d", "--", "true")
    spec = content.submitted[-1]
    assert spec["resources"] == {"gpus": 4, "gpu_models": ["a100", "l40s"], "cpus": 2.0}
    assert (spec["image"], spec["env"], spec["countries_allowed"]) == ("b:2", {"A": "1", "B": "3"}, ["CI"])
    assert spec["artifacts"] == [{"name": "log", "path": "out/log.txt", "keep_days": 2.0}]
    harch("run", "-d", "--keep", "1d", "--query", "2 GPUs, in MA", "--", "true")
    spec = content.submitted[-1]
    assert spec["artifacts"] == [{"name": "model", "path": "out/model.pt", "keep_days": 1.0}]
    assert spec["resources"] == {"cpus": 8}


def test_code_of_a_country_is_not_sent_to_a_hub_of_another(harch: Harch, content: ContentHub) -> None:
    write("harch.toml", '[code]\ncountries = ["SN"]\n')
    result = harch("run", "-d", "--", "true")
    assert result.exit_code == 4
    assert "error[E0907]: the code may be in SN only" in result.stderr
    assert "hub dakhla is in MA" in result.stderr
    assert content.asked == ["GET /health"]
    assert content.chunks == {}
    write("harch.toml", '[code]\ncountries = ["SN", "MA"]\n')
    assert harch("run", "-d", "--", "true").exit_code == 0
    tag = content.data[0]["tag"]
    assert (tag["process_in"], tag["rest_in"], tag["may_cross_borders"]) == (["SN", "MA"], ["SN", "MA"], True)
    assert content.data[0]["name"].endswith("-sn-ma"), "the same files with another tag are another object"


def test_the_hub_is_told_where_the_work_may_run_and_decides_where_its_code_may_be(
    harch: Harch, content: ContentHub
) -> None:
    write("harch.toml")
    harch("run", "-d", "--country", "ma", "--", "true")
    assert (content.data[-1]["countries"], "tag" in content.data[-1]) == (["MA"], False)
    harch("run", "-d", "--", "true")
    assert "countries" not in content.data[-1]


def test_chunks_that_the_hub_has_lost_meanwhile_are_sent_again(harch: Harch, content: ContentHub) -> None:
    write("train.py", "1\n")
    content.forget_before_registration = sending.ROUNDS_MAX - 1
    assert harch("run", "-d", "--", "python", "train.py").exit_code == 0
    content.forget_before_registration = sending.ROUNDS_MAX
    result = harch("run", "-d", "--", "python", "train.py")
    assert (result.exit_code, "E1104" in result.stderr) == (1, True)


def test_ctrl_c_while_code_is_sent_submits_and_registers_nothing(
    harch: Harch, content: ContentHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("train.py", "1\n")
    write("lib.py", "2\n")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("harch.sdk.content.Content.put", interrupted)
        result = harch("run", "-d", "--", "python", "train.py")
    assert result.exit_code == 130
    assert "nothing was submitted" in result.stderr
    assert (content.data, content.submitted) == ([], [])
    assert harch("run", "-d", "--", "python", "train.py").exit_code == 0


def test_with_json_nothing_but_the_document_is_printed(harch: Harch, content: ContentHub) -> None:
    write("train.py", "1\n")
    write("requirements.txt")
    result = harch("run", "-d", "--json", "--", "python", "train.py")
    assert json.loads(result.stdout)["id"] == "wl_1"
    assert result.stderr == ""
    write(".env", "A_SECRET=x\n")
    refused = harch("run", "-d", "--json", "--", "python", "train.py")
    assert json.loads(refused.stdout)["error"]["code"] == "E1107"


def test_links_travel_as_links(harch: Harch, content: ContentHub, tmp_path: Path) -> None:
    write("train.py", "1\n")
    Path("inside").symlink_to("train.py")
    (tmp_path / "elsewhere").write_text("secret")
    Path("outside").symlink_to(tmp_path / "elsewhere")
    result = harch("run", "-d", "--", "python", "train.py")
    files = content.files_of(content.data[0]["content"])
    assert files["inside"] == b"train.py"
    assert files["outside"] == str(tmp_path / "elsewhere").encode()
    assert "outside is a link to" in result.stderr


def test_a_folder_of_which_everything_is_ignored_sends_no_code(harch: Harch, content: ContentHub) -> None:
    write("pyproject.toml", '[project]\nname = "x"\n')
    write(".harchignore", "*\n")
    result = harch("run", "-d", "--", "sh", "-c", "date")
    assert (result.exit_code, content.data) == (0, [])
    assert "code:" not in result.stderr


def test_a_script_that_names_a_file_of_the_folder_brings_the_folder(harch: Harch, content: ContentHub) -> None:
    write("train.py", "1\n")
    harch("run", "-d", "--", "sh", "-c", "cd .; python train.py > log")
    assert content.data[-1]["kind"] == "code"
    count = len(content.data)
    harch("run", "-d", "--", "sh", "-c", "python other.py")
    assert len(content.data) == count


def test_a_folder_of_wheels_whose_wheels_are_ignored_is_refused_before_anything_is_sent(
    harch: Harch, content: ContentHub
) -> None:
    write("requirements.txt", "demo\n")
    write("wheels/.gitignore", "*\n")
    write("wheels/demo-1-py3-none-any.whl", "x")
    write("wheels/notes.txt", "x")
    options = ("--requirements", "requirements.txt", "--wheels", "wheels")
    result = harch("run", "-d", *options, "--", "true")
    assert (result.exit_code, content.data) == (2, [])
    assert "E0201" in result.stderr
    write(".harchignore", "!wheels/**\n")
    assert harch("run", "-d", *options, "--", "true").exit_code == 0


def test_a_typed_image_takes_the_place_of_the_projects_environment_and_the_other_way(
    harch: Harch, content: ContentHub
) -> None:
    write("harch.toml", '[environment]\npackages = ["numpy"]\n')
    assert harch("run", "-d", "--image", "registry.local/x:1", "--", "true").exit_code == 0
    assert content.submitted[-1].get("environment") is None
    write("harch.toml", '[run]\nimage = "registry.local/x:1"\n')
    assert harch("run", "-d", "--package", "numpy", "--", "true").exit_code == 0
    assert content.submitted[-1].get("image") is None
