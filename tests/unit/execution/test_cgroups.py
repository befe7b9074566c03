"""Limits are found per controller, in both versions of cgroups, and their absence is said, not raised."""

from __future__ import annotations

from pathlib import Path

from harch.execution import kernel
from harch.execution.isolation import cgroups
from harch.execution.isolation.cgroups import Cgroups, HostCapacity, detect

HOST = HostCapacity(cpus=4, memory_bytes=8 * 10**9)


def fake_proc(tmp_path: Path, mounts: list[str], groups: list[str]) -> Path:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text("\n".join(mounts))
    (proc / "self" / "cgroup").write_text("\n".join(groups))
    (proc / "meminfo").write_text("MemTotal: 1000 kB\n")
    return proc


def test_version_1_is_found_per_controller_below_our_own_group(tmp_path):
    for name in ("memory/svc", "cpu,cpuacct/svc"):
        (tmp_path / name).mkdir(parents=True)
    proc = fake_proc(
        tmp_path,
        [
            f"30 25 0:26 / {tmp_path}/memory rw - cgroup cgroup rw,memory",
            f"31 25 0:27 / {tmp_path}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
        ],
        ["4:memory:/svc", "3:cpu,cpuacct:/svc"],
    )
    found = detect("tag", proc=proc)
    assert found.v1 == {"memory": tmp_path / "memory/svc/harch-tag", "cpu": tmp_path / "cpu,cpuacct/svc/harch-tag"}
    assert found.host.memory_bytes == 1000 * 1024
    features = found.features()
    assert (features["memory_limit"], features["cpu_limit"], features["pause"]) == ("cgroup v1", "cgroup v1", "signals")
    assert features["pids_limit"].startswith("not enforced")


def test_version_2_hands_its_controllers_down(tmp_path):
    own = tmp_path / "unified" / "svc"
    (own / "harch-tag").mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpu memory pids hugetlb")
    (own / "harch-tag" / "cgroup.freeze").write_text("0")
    # The mount shows a part of the hierarchy only, as in a container.
    proc = fake_proc(tmp_path, [f"30 25 0:26 /box {tmp_path}/unified rw - cgroup2 cgroup2 rw"], ["0::/box/svc"])
    found = detect("tag", proc=proc)
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert found.v2 == own / "harch-tag"
    assert found.features()["pause"] == "cgroup v2"


def test_where_nothing_is_writable_it_says_so_and_tasks_have_no_cgroup(tmp_path):
    proc = fake_proc(tmp_path, [f"30 25 0:26 / {tmp_path}/absent rw - cgroup cgroup rw,memory"], ["4:memory:/", "0::/"])
    found = detect("tag", proc=proc)
    assert found.features()["memory_limit"].startswith("not enforced: ")
    assert found.create("t", cpus=1, memory_gb=1) == []
    assert detect("tag", proc=tmp_path / "no-proc").features()["cgroup"] == "not enforced: no cgroup is mounted"


def test_limits_are_capped_to_what_the_host_has(tmp_path, monkeypatch):
    files = ("memory.limit_in_bytes", "cpu.cfs_quota_us", "memory.max", "cpu.max", "pids.max")
    (tmp_path / "t").mkdir()
    for name in files:
        (tmp_path / "t" / name).write_text("")
    groups = Cgroups(HOST, {"memory": tmp_path})
    groups.create("t", cpus=512, memory_gb=2048)
    read = {name: (tmp_path / "t" / name).read_text() for name in files}
    assert (read["memory.limit_in_bytes"], read["memory.max"]) == (str(HOST.memory_bytes),) * 2
    assert (read["cpu.cfs_quota_us"], read["cpu.max"]) == ("400000", "400000 100000")
    assert read["pids.max"] == str(cgroups.PIDS_MAX)
    groups.create("t", cpus=0.001, memory_gb=0.5)
    assert (tmp_path / "t" / "memory.max").read_text() == str(5 * 10**8)
    assert (tmp_path / "t" / "cpu.cfs_quota_us").read_text() == str(cgroups.CPU_QUOTA_US_MIN)


def test_a_kill_for_lack_of_memory_is_counted_in_both_versions(tmp_path):
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert kernel.oom_kills([str(tmp_path)]) == 2
    (tmp_path / "memory.oom_control").unlink()
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert kernel.oom_kills([str(tmp_path), "/nowhere"]) == 1


def test_freezing_tells_whether_it_could(tmp_path):
    assert not kernel.freeze_cgroups([str(tmp_path)], True)
    (tmp_path / "cgroup.freeze").write_text("")
    assert kernel.freeze_cgroups([str(tmp_path)], True)
    assert (tmp_path / "cgroup.freeze").read_text() == "1"
