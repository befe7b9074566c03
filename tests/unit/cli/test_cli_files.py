"""`harch cp`, `data add --files`, `data get`, `data rm`, `artifacts`, `content`: files there and back again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from content_hub import ContentHub

from harch.cli.content import fetching, sending

Harch = Callable[..., Result]
TAG = ("--process-in", "MA", "--rest-in", "MA")


def write(path: str | Path, content: str | bytes = "") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


def files_below(folder: str | Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text() for path in sorted(Path(folder).rglob("*")) if path.is_file()
    }


# cp


def test_a_file_of_the_work_is_copied_here(harch: Harch, content: ContentHub) -> None:
    write(content.work / "out/model.pt", "weights")
    result = harch("cp", "train:out/model.pt", ".")
    assert (result.exit_code, result.stdout) == (0, "copied 1 file, 7 B to ./model.pt\n")
    assert files_below(".") == {"model.pt": "weights"}
    assert harch("cp", "wl_1:out/model.pt", "best.pt").exit_code == 0
    assert Path("best.pt").read_text() == "weights"


def test_a_folder_of_the_work_lands_inside_of_one_that_exists_and_else_gets_its_name(
    harch: Harch, content: ContentHub
) -> None:
    write(content.work / "out/a/1", "one")
    write(content.work / "out/2", "two")
    (content.work / "out/empty").mkdir()
    assert harch("cp", "train:out", "results").exit_code == 0
    assert files_below("results") == {"2": "two", "a/1": "one"}
    assert Path("results/empty").is_dir()
    assert harch("cp", "train:out", "results").exit_code == 0
    assert files_below("results/out") == {"2": "two", "a/1": "one"}
    os.mkdir("flat")
    assert harch("cp", "train:out/.", "flat").exit_code == 0
    assert files_below("flat") == {"2": "two", "a/1": "one"}


def test_the_whole_working_folder_gets_the_name_of_the_work_inside_of_another(
    harch: Harch, content: ContentHub
) -> None:
    write(content.work / "log.txt", "x")
    assert harch("cp", "wl_1:", ".").exit_code == 0
    assert files_below("train") == {"log.txt": "x"}
    assert harch("cp", "wl_1:", "all").exit_code == 0
    assert files_below("all") == {"log.txt": "x"}


def test_what_is_here_already_and_is_the_same_is_not_fetched_again(harch: Harch, content: ContentHub) -> None:
    write(content.work / "out/a", b"a" * 1000)
    write(content.work / "out/b", b"b" * 1000)
    harch("cp", "train:out", "results")
    Path("results/b").unlink()
    content.asked.clear()
    harch("cp", "train:out/.", "results")
    assert content.asked.count("POST /content/fetch") == 3, "the root, the list, and b"
    assert Path("results/b").read_bytes() == b"b" * 1000


def test_a_file_that_is_not_there_is_an_error_of_the_hub(harch: Harch, content: ContentHub) -> None:
    result = harch("cp", "train:none", ".")
    assert (result.exit_code, "error[E1111]" in result.stderr) == (1, True)
    assert harch("cp", "nobody:none", ".").exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a", "b"), "neither path is at a workload"),
        (("train:a", "train:b"), "from one workload to another"),
        (("train:a", "-"), "writes no stdout"),
        (("train:../a", "."), "`../a` has the part `..`"),
        (("train:/etc/passwd", "."), "is absolute"),
        (("none.txt", "train:"), "none.txt does not exist"),
    ],
)
def test_paths_that_cannot_be_meant_are_refused_before_anything_is_asked(
    harch: Harch, content: ContentHub, words: tuple[str, ...], said: str
) -> None:
    result = harch("cp", *words)
    assert (result.exit_code != 0, said in result.stderr) == (True, True), result.stderr
    assert "POST" not in " ".join(content.asked)


def test_a_file_is_copied_to_no_folder_that_does_not_exist(harch: Harch, content: ContentHub) -> None:
    write(content.work / "a", "1")
    result = harch("cp", "train:a", "no/such/b")
    assert (result.exit_code, "no/such is not a folder" in result.stderr) == (2, True)
    assert harch("cp", "train:a", "no/").exit_code == 2


def test_files_are_copied_into_the_folder_of_running_work(harch: Harch, content: ContentHub) -> None:
    write("new.yaml", "lr: 1")
    write("data/a", "1")
    write("data/sub/b", "2")
    for words in (
        ("new.yaml", "train:conf/"),
        ("new.yaml", "train:"),
        ("new.yaml", "train:conf/other.yaml"),
        ("data", "train:in"),
        ("data", "train:mine/"),
        ("data/.", "train:flat/"),
    ):
        result = harch("cp", *words)
        assert result.exit_code == 0, result.stderr
    assert files_below(content.work) == {
        "conf/new.yaml": "lr: 1",
        "conf/other.yaml": "lr: 1",
        "flat/a": "1",
        "flat/sub/b": "2",
        "in/a": "1",
        "in/sub/b": "2",
        "mine/data/a": "1",
        "mine/data/sub/b": "2",
        "new.yaml": "lr: 1",
    }
    assert [one["rank"] for one in content.placed] == [0] * 6
    assert harch("cp", "--rank", "3", "new.yaml", "train:").exit_code == 0
    assert content.placed[-1]["rank"] == 3
    sent = json.loads(harch("cp", "--json", "new.yaml", "train:").stdout)
    assert (sent["files"], sent["size_bytes"], sent["chunks_sent"]) == (1, 5, 0)


def test_ignore_files_do_not_count_for_copies(harch: Harch, content: ContentHub) -> None:
    write("data/.gitignore", "*\n")
    write("data/.env", "A_SECRET=x")
    harch("cp", "data", "train:in")
    assert sorted(files_below(content.work / "in")) == [".env", ".gitignore"]


def test_a_file_alone_does_not_make_its_folder_forgotten(
    harch: Harch, content: ContentHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("data/a", "1")
    write("data/b", "2")
    opened: list[Path] = []
    real = sending.FileCache
    monkeypatch.setattr(sending, "FileCache", lambda folder: opened.append(folder) or real(folder))
    harch("cp", "data", "train:in")
    harch("cp", "data/a", "train:in/")
    assert opened == [Path("data").absolute()]


# data


def test_files_of_data_are_sent_and_registered_with_their_tag_in_one_step(harch: Harch, content: ContentHub) -> None:
    write("corpus/a.txt", "aaa")
    write("corpus/sub/b.txt", "bbb")
    result = harch("data", "add", "corpus", "--files", "corpus", *TAG)
    assert (result.exit_code, result.stdout) == (0, "data_1\n")
    assert "corpus: 2 files, 6 B, 4 chunks sent" in result.stderr
    (data,) = content.data
    assert (data["kind"], data["size_bytes"], data["tag"]["rest_in"]) == ("dataset", 6, ["MA"])
    assert content.files_of(data["content"]) == {"a.txt": b"aaa", "sub/b.txt": b"bbb"}
    assert "keep_days" not in data, "until it is removed"
    alone = harch("data", "add", "image", "--kind", "image", "--files", "corpus/a.txt", "--keep", "36h", *TAG)
    assert alone.exit_code == 0
    assert content.data[1]["keep_days"] == 1.5
    assert content.files_of(content.data[1]["content"]) == {"a.txt": b"aaa"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "data with files needs a tag"),
        (("--process-in", "SN", "--rest-in", "SN"), 4, "corpus may rest in SN only, and hub dakhla is in MA"),
        (("--process-in", "MA", "--rest-in", "SN"), 2, "E0904"),
        ((*TAG, "--size-bytes", "5"), 2, "--files excludes --at, --size-bytes and --digest"),
        ((*TAG, "--keep", "soon"), 2, "write e.g. 90s"),
    ],
)
def test_not_a_byte_is_sent_of_data_that_may_not_rest_there(
    harch: Harch, content: ContentHub, words: tuple[str, ...], code: int, said: str
) -> None:
    write("corpus/a.txt", "aaa")
    result = harch("data", "add", "corpus", "--files", "corpus", *words)
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr
    assert content.chunks == {}
    assert not any(one.startswith("POST") for one in content.asked)


def test_keeping_is_for_files(harch: Harch, content: ContentHub) -> None:
    result = harch("data", "add", "corpus", "--keep", "3d", *TAG)
    assert (result.exit_code, "--keep is for files" in result.stderr) == (2, True)


def test_a_country_that_only_the_hub_may_know_is_left_to_the_hub(harch: Harch, content: ContentHub) -> None:
    write("corpus/a.txt", "aaa")
    assert harch("data", "add", "c", "--files", "corpus", "--process-in", "X1", "--rest-in", "X1").exit_code == 0


def test_data_without_a_folder_is_not_sent(harch: Harch, content: ContentHub) -> None:
    result = harch("data", "add", "corpus", "--files", "nowhere", *TAG)
    assert (result.exit_code, "nowhere does not exist" in result.stderr) == (2, True)


def test_ctrl_c_leaves_nothing_half_registered(
    harch: Harch, content: ContentHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("corpus/a.txt", "aaa")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("harch.sdk.content.Content.put", interrupted)
        result = harch("data", "add", "corpus", "--files", "corpus", *TAG)
    assert (result.exit_code, "nothing was registered" in result.stderr) == (130, True)
    assert content.data == []


def test_data_comes_back_into_a_folder_of_its_name_or_the_one_that_is_given(
    harch: Harch, content: ContentHub, tmp_path: Path
) -> None:
    write(tmp_path / "there/a", "1")
    write(tmp_path / "there/sub/b", "2")
    content.hold("corpus", tmp_path / "there")
    result = harch("data", "get", "corpus")
    assert (result.exit_code, result.stdout) == (0, "corpus: 2 files, 2 B in corpus\n")
    assert files_below("corpus") == {"a": "1", "sub/b": "2"}
    document = json.loads(harch("data", "get", "corpus", "here", "--json").stdout)
    assert (document["files"], document["size_bytes"], document["folder"]) == (2, 2, "here")
    assert files_below("here") == {"a": "1", "sub/b": "2"}
    assert harch("data", "get", "unknown").exit_code == 1


def test_what_another_hub_has_is_waited_for_and_said(
    harch: Harch, content: ContentHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "POLL_S", 0.0)
    write(tmp_path / "there/a", "1")
    content.hold("corpus", tmp_path / "there")
    coming = {"digest": content.data[0]["content"], "source_hub": "dakar", "bytes_done": 1, "bytes_total": 2}
    content.transfers = [coming, {**coming, "bytes_done": 2}]
    result = harch("data", "get", "corpus")
    assert (result.exit_code, result.stderr) == (0, "this hub fetches it from dakar first\n")
    assert files_below("corpus") == {"a": "1"}
    content.transfers = [{**coming, "error": "dakar does not answer"}]
    result = harch("data", "get", "corpus")
    assert (result.exit_code, "error[E1140]: dakar does not answer" in result.stderr) == (1, True)
    content.transfers = [coming]
    quiet = harch("data", "get", "corpus", "--json")
    assert (quiet.exit_code, quiet.stderr) == (0, "")


def test_a_transfer_that_stands_still_is_given_up(
    harch: Harch, content: ContentHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "POLL_S", 0.0)
    monkeypatch.setattr(fetching, "STALLED_S_MAX", -1.0)
    write(tmp_path / "there/a", "1")
    content.hold("corpus", tmp_path / "there")
    content.transfers = [{"digest": "", "source_hub": "dakar", "bytes_done": 1}] * 5
    result = harch("data", "get", "corpus")
    assert (result.exit_code, "nothing has come from dakar" in result.stderr) == (1, True)


def test_data_is_removed_by_name(harch: Harch, content: ContentHub, tmp_path: Path) -> None:
    write(tmp_path / "there/a", "1")
    content.hold("one", tmp_path / "there")
    content.hold("two", tmp_path / "there")
    assert harch("data", "rm", "one", "two").stdout == "removed one\nremoved two\n"
    assert content.data == []
    assert harch("data", "rm", "one").exit_code == 1


# artifacts


def artifact(number: int, name: str, **more: object) -> dict[str, object]:
    return {
        "id": f"data_{number}",
        "name": name,
        "workload_id": "wl_1",
        "digest": "ab" * 32,
        "size_bytes": 1_234_000,
        "hubs": ["dakhla"],
        "created_at": "2026-01-02T03:04:05Z",
        "expires_at": "2126-02-01T03:04:05Z",
    } | more


def test_artifacts_are_listed_of_one_workload_or_of_all(harch: Harch, content: ContentHub) -> None:
    assert "no artifacts are kept" in harch("artifacts", "ls").stderr
    content.artifacts = [artifact(1, "model"), artifact(2, "log", size_bytes=10, expires_at=None)]
    lines = harch("artifacts", "ls", "train").stdout.splitlines()
    assert lines[0].split() == ["NAME", "WORKLOAD", "SIZE", "AT", "AGE", "KEPT", "FOR", "ID"]
    assert lines[1].split()[:4] == ["model", "wl_1", "1.23", "MB"]
    assert content.asked[-1] == "GET /artifacts?workload=train"
    assert harch("artifacts", "ls", "-o", "name", "--sort", "size").stdout == "data_2\ndata_1\n"
    assert content.asked[-1] == "GET /artifacts"


def test_artifacts_are_fetched_by_name_and_all_of_one_workload_by_its_id(
    harch: Harch, content: ContentHub, tmp_path: Path
) -> None:
    write(tmp_path / "m/model.pt", "weights")
    write(tmp_path / "l/log", "lines")
    content.hold("model", tmp_path / "m", kind="artifact")
    content.hold("log", tmp_path / "l", kind="artifact")
    content.artifacts = [artifact(1, "model"), artifact(2, "log")]
    assert harch("artifacts", "get", "model").stdout == "model: 1 file, 7 B in model\n"
    assert harch("artifacts", "get", "data_1", "best").exit_code == 0
    assert files_below("best") == {"model.pt": "weights"}
    assert harch("artifacts", "get", "wl_1", "all").exit_code == 0
    assert files_below("all") == {"log/log": "lines", "model/model.pt": "weights"}
    assert json.loads(harch("artifacts", "get", "wl_1", "all", "--json").stdout)["total"] == 2
    missing = harch("artifacts", "get", "nothing")
    assert (missing.exit_code, "E0906" in missing.stderr) == (1, True)
    content.artifacts = []
    assert "wl_1 has left no artifacts" in harch("artifacts", "get", "wl_1").stderr
