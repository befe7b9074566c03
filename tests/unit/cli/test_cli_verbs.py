"""Do the verbs ask the hub for the right things, and show the answers to people and programs?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hub_double import HubDouble, hub_summary

Harch = Callable[..., Result]


def workload(status: str = "running", **more: Any) -> dict[str, Any]:
    base = {
        "id": "wl_1",
        "name": "train",
        "type": "batch",
        "status": status,
        "metadata": {"id": "wl_1", "name": "train", "created_at": "2026-01-02T03:04:05Z", "labels": {}},
        "spec": {"name": "train", "command": ["true"], "resources": {"gpus": 8}, "tasks": 2},
        "hub_id": "dakhla",
        "tenant": "default",
        "attempt": 1,
        "placement": [{"rank": 0, "node_id": "dakhla-n1", "gpu_ids": ["g1", "g2"]}],
        "started_at": "2026-01-02T03:04:06Z",
    }
    return base | more


def page(*items: Any, total: int | None = None) -> dict[str, Any]:
    return {"items": list(items), "total": len(items) if total is None else total, "pagination": {}}


def explanation(verdict: str = "must_wait", *, residency: bool = True) -> dict[str, Any]:
    rules = [
        {"rule": "residency", "passed": residency, "detail": "is in MA; allowed: MA"},
        {"rule": "capacity", "passed": False, "detail": "0 fit now", "nearest_fix": "starts when 8 GPUs come free"},
    ]
    far = {"rule": "residency", "passed": False, "detail": "is in SN; allowed: MA", "nearest_fix": "choose MA"}
    return {
        "subject": "train",
        "verdict": verdict,
        "sentence": "It waits for 8 GPUs.",
        "hubs": [
            {"hub_id": "dakhla", "country": "MA", "eligible": False, "source": "live", "age_s": 0, "rules": rules},
            {
                "hub_id": "dakar",
                "country": "SN",
                "eligible": False,
                "source": "summary",
                "age_s": 2.5,
                "rules": [far],
                "never": True,
            },
        ],
    }


H100 = {"model": "h100-80gb", "memory_gb": 80, "total": 320, "free": 300, "gpus_per_node_max": 8, "free_shapes": []}
HUBS = page(
    {
        "id": "dakhla",
        "name": "Dakhla",
        "status": "ready",
        "country": "MA",
        "own": True,
        "provenance": "modelled",
        "age_s": 0.0,
        "capacity": {"total_gpus": 640, "available_gpus": 600},
        "summary": hub_summary(models=[H100]),
    },
    {"id": "dakar", "name": "Dakar", "status": "ready", "country": "SN", "reachable": False, "age_s": 75.0},
)


# run


def test_run_submits_follows_and_ends_with_the_exit_code_of_the_task(harch: Harch, hub: HubDouble) -> None:
    ends = [{"rank": 0, "reason": "exited", "exit_code": 7}]
    hub.on("POST /workloads", workload("pending", attempt=0, started_at=None), status=201)
    hub.on(
        "GET /workloads/wl_1",
        workload("pending", attempt=0, started_at=None),
        workload("running"),
        workload("failed", task_ends=ends, error_message="task 0 exited with code 7"),
    )
    hub.on("GET /workloads/wl_1/logs", b"hello\n", b"")
    result = harch("run", "--name", "train", "--gpus", "8", "--country", "ma", "-e", "A=b", "--", "sh", "-c", "exit 7")
    assert result.exit_code == 7
    assert result.stdout == "hello\n"
    assert "train failed: task 0 exited with code 7" in result.stderr
    assert hub.asked[0].body == {
        "name": "train",
        "command": ["sh", "-c", "exit 7"],
        "resources": {"gpus": 8},
        "env": {"A": "b"},
        "countries_allowed": ["MA"],
    }


def test_run_follows_a_restarted_workload_from_the_start_of_its_new_log(harch: Harch, hub: HubDouble) -> None:
    hub.on("POST /workloads", workload(), status=201)
    hub.on("GET /workloads/wl_1", workload(attempt=2), workload("completed", attempt=2))
    hub.on("GET /workloads/wl_1/logs", b"first\n", b"second\n", b"")
    result = harch("run", "--", "true")
    assert result.exit_code == 0
    assert result.stdout == "first\nsecond\n"
    assert "was restarted (attempt 2)" in result.stderr
    logs = [asked.params for asked in hub.asked if asked.path.endswith("/logs")]
    assert [(params["attempt"], params["offset"]) for params in logs] == [("1", "0"), ("2", "0"), ("2", "7")]


def test_run_goes_on_where_it_was_when_the_log_ended_before_the_task(harch: Harch, hub: HubDouble) -> None:
    hub.on("POST /workloads", workload(), status=201)
    hub.on("GET /workloads/wl_1", workload("completed"))
    hub.on("GET /workloads/wl_1/logs", b"one\n", b"two\n")
    assert harch("run", "--", "true").stdout == "one\ntwo\n"


def test_run_says_queries_models_shares_levels_and_classes(harch: Harch, hub: HubDouble) -> None:
    hub.on("POST /workloads", workload("pending"), status=201)
    harch("run", "-d", "--query", "8 GPUs, same rack", "--class", "interactive", "--", "true")
    body = hub.asked[-1].body
    assert (body["query"], body["scheduling_class"]) == ("8 GPUs, same rack", "interactive")
    assert body["resources"] == {}
    harch("run", "-d", "--gpu-fraction", "0.25", "--gpu-models", "h100-80gb | a100-80gb", "--topology", "node", "x")
    body = hub.asked[-1].body
    assert body["resources"] == {"gpus": 1, "gpu_fraction": 0.25, "gpu_models": ["h100-80gb", "a100-80gb"]}
    assert body["topology"] == {"required": "node"}
    harch("run", "-d", "--gpu-fraction", "0.1", "--gpu-memory-gb", "60", "--", "x")
    assert hub.asked[-1].body["resources"] == {"gpus": 1, "gpu_fraction": 0.1, "gpu_memory_gb": 60.0}
    asked = len(hub.asked)
    for wrong, said in (
        (("--gpus", "1", "--gpu-memory-gb", "60"), "a whole GPU comes with all its memory"),
        (("--gpu-fraction", "0.1", "--gpu-memory-gb", "-1"), "--gpu-memory-gb must be more than 0"),
    ):
        result = harch("run", "-d", *wrong, "--", "x")
        assert result.exit_code == 2
        assert "error[E0201]" in result.stderr
        assert said in result.stderr
        assert "hint: " in result.stderr
    assert len(hub.asked) == asked, "nothing of it was sent"


def test_run_detached_prints_only_the_id_on_stdout(harch: Harch, hub: HubDouble) -> None:
    hub.on("POST /workloads", workload("pending"), status=201)
    result = harch("run", "-d", "--", "sleep", "60")
    assert result.stdout == "wl_1\n"
    assert "harch logs wl_1 -f" in result.stderr
    assert hub.asked[0].body["name"].startswith("sleep-")


def test_run_with_json_is_one_document_at_the_end(harch: Harch, hub: HubDouble) -> None:
    hub.on("POST /workloads", workload("pending"), status=201)
    hub.on("GET /workloads/wl_1", workload("completed"))
    result = harch("run", "--json", "--", "true")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["status"] == "completed"


def test_ctrl_c_stops_following_and_says_how_to_stop_the_work(
    harch: Harch, hub: HubDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.on("POST /workloads", workload(), status=201)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harch.cli.follow.follow", interrupted)
    result = harch("run", "--", "sleep", "60")
    assert result.exit_code == 130
    assert "train keeps running" in result.stderr
    assert "harch stop wl_1" in result.stderr
    assert [asked.method for asked in hub.asked] == ["POST"]


def test_run_goes_to_the_named_hub(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /hubs", page({"id": "dakar", "name": "Dakar", "endpoint": hub.url}))
    hub.on("POST /workloads", workload("pending"), status=201)
    result = harch("run", "--hub", "Dakar", "-d", "--", "true")
    assert result.exit_code == 0
    assert "--hub Dakar" in result.stderr
    assert harch("run", "--hub", "nowhere", "-d", "--", "true").exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "-1", "--", "x"], "--gpus must be at least 0"),
        (["--country", "MRO", "--", "x"], "--country `MRO` is not valid"),
        (["--memory", "16 apples", "--", "x"], "write e.g. 512MB, 16GB or 1TB"),
        (["--max-duration", "soon", "--", "x"], "write e.g. 90s, 30m, 12h or 2d"),
        (["--env", "HARCH_NOT_SET_ANYWHERE", "--", "x"], "is not set"),
        ([], "no command to run"),
        (["--modelled-duration", "5s", "--", "x"], "excludes `command`"),
    ],
)
def test_run_refuses_mistakes_before_it_asks_a_hub(harch: Harch, hub: HubDouble, words: list[str], said: str) -> None:
    result = harch("run", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert hub.asked == []


@pytest.mark.parametrize(
    ("words", "resources"),
    [
        (["--gpu-model", "h100-80gb"], {"gpus": 1, "gpu_model": "h100-80gb"}),
        (["--gpu-models", "a|b"], {"gpus": 1, "gpu_models": ["a", "b"]}),
        (["--gpu-model", "h100-80gb", "--gpus", "4"], {"gpus": 4, "gpu_model": "h100-80gb"}),
        (["--cpus", "2"], {"cpus": 2.0}),
    ],
)
def test_naming_a_model_asks_for_one_gpu(
    harch: Harch, hub: HubDouble, words: list[str], resources: dict[str, object]
) -> None:
    hub.on("POST /workloads", workload("pending"), status=201)
    harch("run", "-d", *words, "--", "true")
    assert hub.asked[0].body["resources"] == resources


def test_several_mistakes_are_named_by_their_flags(harch: Harch, hub: HubDouble) -> None:
    result = harch("run", "--tasks", "0", "--env", "=x", "--json", "--", "true")
    error = json.loads(result.stdout)["error"]
    assert error["message"].splitlines()[0] == "2 problems"
    assert {problem["field"] for problem in error["problems"]} == {"--tasks", "--env"}
    assert error["field"] in {"--tasks", "--env"}


def test_units_become_numbers(harch: Harch, hub: HubDouble) -> None:
    hub.on("POST /workloads", workload("pending"), status=201)
    harch("run", "-d", "--memory", "512MB", "--max-duration", "90m", "--", "true")
    assert hub.asked[0].body["resources"] == {"memory_gb": 0.512}
    assert hub.asked[0].body["max_duration_s"] == 5400


def test_a_refusal_of_the_hub_has_its_own_exit_code(harch: Harch, hub: HubDouble) -> None:
    hub.fail("POST /workloads", 403, "E0902", "dakhla is in MA", "choose a hub in SN")
    result = harch("run", "-d", "--country", "SN", "--", "true")
    assert result.exit_code == 4
    assert result.stderr == "error[E0902]: dakhla is in MA\n\nhint: choose a hub in SN\n"
    result = harch("run", "--json", "-d", "--country", "SN", "--", "true")
    assert json.loads(result.stdout)["error"]["code"] == "E0902"


# why, plan, apply


def test_why_says_the_reason_and_what_rejects_it_and_all_rules_on_demand(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads/train/why", explanation())
    short = harch("why", "train")
    assert short.exit_code == 0
    assert short.stdout.splitlines() == [
        "train: must wait",
        "  It waits for 8 GPUs.",
        "  would help  starts when 8 GPUs come free",
        "dakhla (MA), live: cannot take it now",
        "  FAIL  capacity  0 fit now",
        "                  fix: starts when 8 GPUs come free",
        "dakar (SN), from its summary, 2.5 s old: can never take it",
        "  FAIL  residency  is in SN; allowed: MA",
        "                   fix: choose MA",
    ]
    assert short.stderr == "1 rule passes; `harch why train --all` shows every rule\n"
    assert harch("why", "train", "--all").stdout.splitlines() == [
        "train: must wait",
        "  It waits for 8 GPUs.",
        "  would help  starts when 8 GPUs come free",
        "",
        "dakhla (MA), live: cannot take it now",
        "  pass  residency  is in MA; allowed: MA",
        "  FAIL  capacity   0 fit now",
        "                   fix: starts when 8 GPUs come free",
        "",
        "dakar (SN), from its summary, 2.5 s old: can never take it",
        "  FAIL  residency  is in SN; allowed: MA",
        "                   fix: choose MA",
    ]
    assert json.loads(harch("why", "train", "--json").stdout)["verdict"] == "must_wait"


def test_why_shows_rules_that_nearly_say_no_and_hubs_that_do_not_answer(harch: Harch, hub: HubDouble) -> None:
    capacity = {"rule": "capacity", "passed": True, "detail": "8 tasks wanted, 9 fit now"}
    near = {**capacity, "needed": 8, "available": 9}
    far = {**capacity, "detail": "8 tasks wanted, 10 fit now", "needed": 8, "available": 10}
    silent = {"rule": "reachable", "passed": False, "detail": "no answer"}
    common = {"country": "MA", "eligible": False, "source": "summary", "age_s": 2.0}
    hubs = [
        {**common, "hub_id": "dakhla", "eligible": True, "source": "live", "rules": [near]},
        {**common, "hub_id": "tangier", "eligible": True, "rules": [far]},
        {**common, "hub_id": "casablanca", "rules": [far]},
        {**common, "hub_id": "dakar", "country": "", "source": "unknown", "rules": [silent]},
    ]
    hub.on("GET /workloads/train/why", explanation("fits_now") | {"hubs": hubs})
    assert harch("why", "train").stdout.splitlines()[2:] == [
        "dakhla (MA), live: could take it",
        "  near  capacity  8 tasks wanted, 9 fit now",
        "tangier (MA), from its summary, 2.0 s old: could take it",
        "casablanca (MA), from its summary, 2.0 s old: does not answer",
        "dakar, no contact yet: does not answer",
        "  FAIL  reachable  no answer",
    ]
    hub.on("GET /workloads/train/why", explanation("finished") | {"hubs": hubs})
    assert "dakhla" not in harch("why", "train").stdout
    assert "dakhla" in harch("why", "train", "--all").stdout


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text("name: train\ncommand: [sleep, 1]\n")
    return str(path)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (explanation("fits_now"), 0),
        (explanation("must_wait"), 0),
        (explanation("never_fits"), 3),
        (explanation("never_fits", residency=False), 4),
    ],
)
def test_plan_ends_with_what_the_plan_means(
    harch: Harch, hub: HubDouble, file: str, answer: dict[str, Any], code: int
) -> None:
    hub.on("POST /workloads/plan", answer)
    assert harch("plan", file).exit_code == code
    assert harch("plan", file, "--json").exit_code == code


def test_apply_does_not_submit_what_can_never_run(harch: Harch, hub: HubDouble, file: str) -> None:
    hub.on("POST /workloads/plan", explanation("never_fits"))
    result = harch("apply", file, "-y")
    assert result.exit_code == 3
    assert "nothing was submitted" in result.stderr
    assert [asked.path for asked in hub.asked] == ["/workloads/plan"]


def test_apply_needs_an_answer_or_a_yes(harch: Harch, hub: HubDouble, file: str) -> None:
    result = harch("apply", file)
    assert result.exit_code == 2
    assert "pass --yes" in result.stderr
    assert hub.asked == []


def test_apply_asks_on_a_terminal(harch: Harch, hub: HubDouble, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harch.cli.options.is_interactive", lambda: True)
    hub.on("POST /workloads/plan", explanation("fits_now"))
    hub.on("POST /workloads", workload("pending"), status=201)
    assert harch("apply", file, "-d", stdin="n\n").exit_code == 1
    assert "/workloads" not in [asked.path for asked in hub.asked]
    assert harch("apply", file, "-d", stdin="y\n").exit_code == 0
    assert "/workloads" in [asked.path for asked in hub.asked]


def test_apply_waits_for_the_end_and_fails_if_one_failed(harch: Harch, hub: HubDouble, file: str) -> None:
    hub.on("POST /workloads/plan", explanation("fits_now"))
    hub.on("POST /workloads", workload("pending"), status=201)
    hub.on("GET /workloads/wl_1", workload("running"), workload("failed", error_message="out of memory"))
    result = harch("apply", file, "-y")
    assert result.exit_code == 1
    assert "train failed: out of memory" in result.stderr
    document = json.loads(harch("apply", file, "-y", "--json").stdout)
    assert document["items"][0]["status"] == "failed"


def test_apply_returns_once_a_reservation_holds_its_gpus(harch: Harch, hub: HubDouble, tmp_path: Path) -> None:
    path = tmp_path / "hold.yaml"
    path.write_text("name: hold\nresources: {gpus: 8}\n")
    held = workload("running", spec={"name": "hold", "resources": {"gpus": 8}})
    hub.on("POST /workloads/plan", explanation("fits_now"))
    hub.on("POST /workloads", held, status=201)
    hub.on("GET /workloads/wl_1", held)
    assert harch("apply", str(path), "-y").exit_code == 0


def test_apply_says_what_was_submitted_before_an_error(harch: Harch, hub: HubDouble, tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text("name: a\ncommand: [x]\n---\nname: b\ncommand: [x]\n")
    hub.on("POST /workloads/plan", explanation("fits_now"))
    refused = {"code": "E0302", "message": "name in use", "error": {"code": "E0302", "hint": "rename it"}}
    hub.answers["POST /workloads"] = [(201, workload()), (409, refused)]
    result = harch("apply", str(path), "-y", "-d")
    assert result.exit_code == 1
    assert "rename it; already submitted: wl_1" in result.stderr


def test_a_file_that_is_missing_or_wrong_is_a_usage_error(harch: Harch, hub: HubDouble, tmp_path: Path) -> None:
    result = harch("plan", str(tmp_path / "none.yaml"))
    assert result.exit_code == 2
    assert "error[E0202]" in result.stderr
    result = harch("plan", "-", "--json", stdin="name: [\n")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["code"] == "E0202"
    result = harch("plan", "-", "--json", stdin="nmae: x\n")
    assert json.loads(result.stdout)["error"]["problems"][0]["line"] == 1


# lists


def test_ps_shows_state_size_and_reason(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads", page(workload(), workload("failed", name="\x1b[31mevil", error_message="exit 1"), total=9))
    result = harch("ps", "--limit", "2")
    assert result.exit_code == 0
    header, first, second = result.stdout.splitlines()
    assert header.split()[:3] == ["ID", "NAME", "STATUS"]
    assert "2 x 8" in first
    assert "dakhla-n1" in first
    assert "exit 1" in second
    assert "\x1b" not in result.stdout
    assert "2 of 9" in result.stderr
    assert hub.asked[0].params == {"page": "1", "per_page": "2", "active": "true"}


def test_ps_never_shows_a_negative_time(harch: Harch, hub: HubDouble) -> None:
    later = "2199-01-01T00:00:00Z"  # the hub's clock is ahead of this machine's
    ahead = workload("running", started_at=later)
    ahead["metadata"]["created_at"] = later
    odd = workload("completed", started_at=later, completed_at="2198-12-31T23:00:00Z")
    hub.on("GET /workloads", page(ahead, odd))
    shown = harch("ps", "-a")
    assert shown.exit_code == 0
    assert shown.stdout.count("0.0 s") >= 3
    assert not re.search(r"(?<!\S)-\d", shown.stdout)


def test_ps_reads_as_many_pages_as_it_needs(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads", page(*[workload()] * 100, total=150), page(*[workload()] * 50, total=150))
    result = harch("ps", "--all-states", "--limit", "1000", "--json")
    document = json.loads(result.stdout)
    assert len(document["items"]) == document["total"] == 150
    assert "active" not in hub.asked[0].params


def test_modelled_work_is_labelled(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads", page(workload(modelled=True)))
    assert "modelled" in harch("ps").stdout


def test_hubs_show_the_age_and_the_kind_of_their_figures(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /hubs", HUBS)
    lines = harch("hubs").stdout.splitlines()
    assert "Dakhla *" in lines[1]
    assert "600 of 640" in lines[1]
    assert "modelled" in lines[1]
    assert "no answer" in lines[2]
    assert "75 s" in lines[2]
    assert json.loads(harch("hubs", "--json").stdout)["total"] == 2


def test_hubs_show_who_is_suspected_and_how_far_the_others_are(harch: Harch, hub: HubDouble) -> None:
    own, other = HUBS["items"]
    told = {"standing": "suspected", "error": "suspected: silent for 75 s", "rtt_ms": None}
    hub.on("GET /hubs", {"items": [{**own, "rtt_ms": 8.04}, {**other, **told}], "total": 2})
    lines = harch("hubs").stdout.splitlines()
    assert "8.0 ms" in lines[1]
    assert "suspected: silent for 75 s" in lines[2]
    assert "no answer" not in lines[2]


def test_ps_of_all_hubs_names_owner_runner_and_who_did_not_answer(harch: Harch, hub: HubDouble) -> None:
    lent = workload(hub_id="tangier", runner_hub="dakar", nodes=["dakar-n1"])
    silent = [
        {"hub_id": "abidjan", "why": "suspected", "age_s": 90.0, "workloads": {"running": 2}},
        {"hub_id": "casablanca", "why": "never heard", "age_s": None, "workloads": {}},
    ]
    hub.on("GET /workloads", {**page(lent), "silent_hubs": silent, "complete": False})
    shown = harch("ps", "--all")
    header, row = shown.stdout.splitlines()
    assert header.split()[2:5] == ["OWNER", "RUNS", "AT"]
    assert row.split()[2:4] == ["tangier", "dakar"]
    assert "abidjan is not in this list (suspected); 90 s ago it had 2 running" in shown.stderr
    assert "casablanca is not in this list (never heard); no data about it" in shown.stderr
    assert hub.asked[0].params["scope"] == "federation"
    document = json.loads(harch("ps", "--all", "--json").stdout)
    assert [one["hub_id"] for one in document["silent_hubs"]] == ["abidjan", "casablanca"]


def test_ps_says_of_which_work_nothing_was_heard_for_long_and_whose_owner_is_silent(
    harch: Harch, hub: HubDouble
) -> None:
    unheard = workload(hub_id="dakhla", runner_hub="dakar", unheard_s=420.0)
    hub.on("GET /workloads", page(unheard))
    assert "no message for 7 min from dakar" in harch("ps").stdout
    borrowed = workload(hub_id="dakar", runner_hub="dakhla", guest=True)
    hub.on("GET /workloads", {**page(borrowed), "silent_hubs": [], "complete": True})
    assert "its owner does not answer" in harch("ps", "--all").stdout
    hub.on("GET /workloads", page(borrowed))
    assert "does not answer" not in harch("ps", "--borrowed").stdout


def test_ps_says_why_work_waits_unless_it_stops(harch: Harch, hub: HubDouble) -> None:
    reason = {"pending_reason": "waits for free resources"}
    hub.on("GET /workloads", page(workload("pending", **reason)))
    assert "waits for free resources" in harch("ps").stdout
    hub.on("GET /workloads", page(workload("pending", stopping=True, **reason)))
    assert "waits for" not in harch("ps").stdout


def test_hubs_count_their_own_work_and_guests_apart(harch: Harch, hub: HubDouble) -> None:
    own, other = HUBS["items"]
    with_guests = {**own, "active_workloads": 5, "summary": hub_summary(guests={"running": 2})}
    hub.on("GET /hubs", {"items": [with_guests, {**other, "active_workloads": 3}], "total": 2})
    lines = harch("hubs").stdout.splitlines()
    assert "5 + 2 borrowed" in lines[1]
    assert "borrowed" not in lines[2]


def test_ps_shows_where_lent_work_runs_and_guests_only_when_asked(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads", page(workload(hub_id="dakhla", runner_hub="dakar")))
    assert "RUNS AT" in harch("ps").stdout
    assert "guests" not in hub.asked[0].params
    hub.on("GET /workloads", page(workload(hub_id="dakhla", runner_hub="dakhla")))
    assert "RUNS AT" not in harch("ps").stdout
    harch("ps", "--borrowed")
    assert hub.asked[-1].params["guests"] == "true"
    assert harch("ps", "--all", "--borrowed").exit_code == 2


def test_a_hub_is_drained_until_nothing_is_left(harch: Harch, hub: HubDouble) -> None:
    left = {"hub_id": "dakhla", "state": "draining", "remaining": {"running": 1}, "remaining_total": 1}
    gone = {"hub_id": "dakhla", "state": "draining", "remaining": {}, "remaining_total": 0}
    hub.on("GET /hubs", {"items": [{**HUBS["items"][0], "endpoint": hub.url}], "total": 1})
    hub.on("POST /hubs/dakhla/drain", left)
    hub.on("GET /hubs/dakhla/closure", left, gone)
    waited = harch("hub", "drain", "Dakhla", "--wait", "--reason", "racks")
    assert waited.stdout.strip() == "dakhla is drained; no work left"
    assert "work left: 1 running" in waited.stderr
    assert hub.asked[1].body == {"why": "racks"}
    hub.fail("POST /hubs/dakhla/retire", 409, "E0304", "Dakhla cannot retire", "drain it")
    assert harch("hub", "retire", "dakhla").exit_code == 1


def test_run_may_be_told_to_stay_home(harch: Harch, hub: HubDouble) -> None:
    hub.on("POST /workloads", workload())
    harch("run", "-d", "--stay-home", "--", "true")
    assert hub.asked[0].body["stay_home"] is True
    harch("run", "-d", "--", "true")
    assert "stay_home" not in hub.asked[1].body


def test_gpus_lists_each_or_counts_by_model(harch: Harch, hub: HubDouble) -> None:
    gpu = {"id": "g1", "hub_id": "dakhla", "node_id": "n1", "model": "h100-80gb", "status": "free"}
    hub.on("GET /gpus", page({**gpu, "provenance": "modelled"}))
    hub.on("GET /hubs", HUBS)
    assert "modelled" in harch("gpus", "--model", "h100-80gb").stdout
    assert hub.asked[0].params["model"] == "h100-80gb"
    assert "300 of 320" in harch("gpus", "--models").stdout
    assert json.loads(harch("gpus", "--models", "--json").stdout)["items"][0]["free"] == 300


def event(seq: int) -> dict[str, Any]:
    return {"seq": seq, "at": "2026-01-02T03:04:05Z", "kind": "workload.running", "subject": "wl_1", "message": "runs"}


def events_page(*items: Any, last: int) -> dict[str, Any]:
    return {"items": list(items), "total": len(items), "next_after": items[-1]["seq"], "last_seq": last}


def test_events_prints_what_has_happened(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /events", events_page(event(8), event(9), last=9))
    lines = harch("events").stdout.splitlines()
    assert len(lines) == 2
    assert "2026-01-02T03:04:05.000Z  workload.running" in lines[0]
    assert hub.asked[0].params == {"limit": "100"}


def test_events_after_a_number_are_read_page_by_page(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /events", events_page(event(1), event(2), last=3), events_page(event(3), last=3))
    document = json.loads(harch("events", "--after", "0", "--limit", "5000", "--json").stdout)
    assert [item["seq"] for item in document["items"]] == [1, 2, 3]
    assert [asked.params["after"] for asked in hub.asked] == ["0", "2"]


def test_followed_events_are_one_json_object_per_line(harch: Harch, hub: HubDouble) -> None:
    text = "".join(f"data: {json.dumps(event(seq))}\n\n" for seq in (1, 2)).encode()
    gone = {"code": "E0102", "message": "revoked"}
    hub.answers["GET /events"] = [(200, events_page(event(0), last=0)), (200, text), (401, gone)]
    result = harch("events", "-f", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line.get("seq") for line in lines] == [0, 1, 2, None]
    assert lines[3]["error"]["code"] == "E0102"
    assert result.exit_code == 1


# one workload


def test_logs_prints_all_pages(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads/train", workload("completed"))
    hub.on("GET /workloads/wl_1/logs", b"one\n", b"two\n", b"")
    assert harch("logs", "train", "--rank", "1").stdout == "one\ntwo\n"
    assert hub.asked[1].params["rank"] == "1"
    assert json.loads(harch("logs", "train", "--json").stdout) == {"id": "wl_1", "rank": 0, "text": ""}


def test_logs_since_a_time(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads/train", workload("running"))
    hub.on("GET /workloads/wl_1/logs", b"new\n", b"")
    assert harch("logs", "train", "--since", "2026-03-01T08:00:00Z").stdout == "new\n"
    assert hub.asked[1].params["since"] == "2026-03-01T08:00:00+00:00"
    hub.on("GET /workloads/wl_1", workload("completed"))
    hub.on("GET /workloads/wl_1/logs", b"new\n", b"", b"newer\n", b"")
    result = harch("logs", "train", "-f", "--since", "1h")
    assert result.stdout == "new\nnewer\n"
    follows = [asked.params for asked in hub.asked if asked.params.get("follow")]
    assert follows[0]["offset"] == "4"


def test_logs_of_a_finished_workload_can_be_followed(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads/train", workload("completed"))
    hub.on("GET /workloads/wl_1/logs", b"all\n")
    result = harch("logs", "train", "-f")
    assert (result.exit_code, result.stdout) == (0, "all\n")


def test_stop_stops_all_that_it_can_and_tells_the_rest(harch: Harch, hub: HubDouble) -> None:
    hub.on("PATCH /workloads/a", workload("running", stopping=True))
    hub.fail("PATCH /workloads/b", 404, "E0301", "Workload not found: b", "harch ps lists them")
    result = harch("stop", "b", "a")
    assert result.exit_code == 1
    assert "stopping wl_1 (train)" in result.stdout
    assert "Workload not found: b" in result.stderr
    assert hub.asked[1].body == {"status": "cancelled"}
    document = json.loads(harch("stop", "b", "a", "--json").stdout)
    assert document["errors"][0]["ref"] == "b"
    assert document["items"][0]["id"] == "wl_1"


def test_stop_can_wait_for_the_end(harch: Harch, hub: HubDouble) -> None:
    hub.on("PATCH /workloads/train", workload("running"))
    hub.on("GET /workloads/wl_1", workload("cancelled"))
    assert "stopped wl_1 (train), now cancelled" in harch("stop", "train", "--wait").stdout


@pytest.mark.parametrize(("verb", "status"), [("pause", "paused"), ("resume", "running")])
def test_pause_and_resume_set_the_status(harch: Harch, hub: HubDouble, verb: str, status: str) -> None:
    hub.on("PATCH /workloads/train", workload(status))
    assert f"now {status}" in harch(verb, "train").stdout
    assert hub.asked[0].body == {"status": status}


def test_quota_shows_what_is_held_beside_what_may_be(harch: Harch, hub: HubDouble) -> None:
    whole = {"tenant": "acme", "gpus_held": 8.5, "gpus_held_max": 64, "tasks_held": 3, "workloads_pending": 12}
    training = {"tenant": "acme", "scheduling_class": "training", "workloads_pending_max": 100, "weight": 2.5}
    hub.on("GET /quotas", page(whole, training))
    lines = harch("quota").stdout.splitlines()
    assert lines[1].split() == ["acme", "all", "8.5", "of", "64", "3", "12", "1"]
    assert lines[2].split() == ["acme", "training", "0", "0", "0", "of", "100", "2.5"]
    assert harch("quota", "-o", "name", "--sort", "-gpus").stdout.split() == ["acme", "acme/training"]


def test_restart_starts_each_again(harch: Harch, hub: HubDouble) -> None:
    hub.on("GET /workloads/train", workload("running"))
    hub.on("POST /workloads/wl_1/restart", workload("running"))
    hub.fail("GET /workloads/lost", 404, "E0301", "no workload `lost`")
    result = harch("restart", "lost", "train")
    assert result.exit_code == 1
    assert "restarting wl_1 (train), now running" in result.stdout
    assert "no workload `lost`" in result.stderr


def test_a_secret_comes_from_stdin_or_a_file_and_is_never_shown(harch: Harch, hub: HubDouble, tmp_path: Path) -> None:
    hub.on("PUT /secrets/TOKEN", {"name": "TOKEN"})
    hub.on("GET /secrets", page({"name": "TOKEN"}))
    hub.on("DELETE /secrets/TOKEN", {"success": True})
    result = harch("secret", "set", "TOKEN", stdin="s3cret\n")
    assert result.exit_code == 0
    assert "s3cret" not in result.output
    assert hub.asked[0].body == {"value": "s3cret"}
    path = tmp_path / "value"
    path.write_text("from a file")
    harch("secret", "set", "TOKEN", "-f", str(path))
    assert hub.asked[1].body == {"value": "from a file"}
    assert "TOKEN" in harch("secret", "ls").stdout
    assert "removed TOKEN" in harch("secret", "rm", "TOKEN").stdout
    assert harch("secret", "set", "TOKEN", stdin="").exit_code == 2
