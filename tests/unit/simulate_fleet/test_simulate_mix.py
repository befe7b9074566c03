"""Does a mix mean what it says, and a trace what it lists?"""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.fleet.file import shipped_fleet
from harch.fleet.model import Fleet
from harch.simulate.arrivals import read_trace
from harch.simulate.workload_mix import WorkloadMix, generate, load_mix, parse_mix
from harch.workloads.spec import SchedulingClass


def test_the_same_seed_gives_the_same_jobs_and_another_seed_gives_others(fleet: Fleet, mix: WorkloadMix) -> None:
    first = generate(fleet, mix, hours=None, seed=5)
    assert generate(fleet, mix, hours=None, seed=5).jobs == first.jobs
    assert generate(fleet, mix, hours=None, seed=6).jobs != first.jobs
    assert [job.request.submitted_s for job in first.jobs] == sorted(job.request.submitted_s for job in first.jobs)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_shipped_mix_offers_its_load_at_every_hub_and_keeps_the_shares_that_it_promises(seed: int) -> None:
    fleet, mix = shipped_fleet("five-hubs"), load_mix("saturated")
    work = generate(fleet, mix, hours=96, seed=seed)
    for hub in fleet.hubs:
        asked = sum(job.gpu_seconds for job in work.jobs if job.home == hub.id)
        assert asked / (hub.gpu_count * 96 * 3600) == pytest.approx(mix.load, rel=0.1)
    pinned = sum(job.request.countries_allowed == ("MA",) for job in work.jobs) / len(work.jobs)
    assert pinned == pytest.approx(0.6, abs=0.04)
    plain = [job for job in work.jobs if job.request.tasks == 1]
    assert sum(job.kind == "one-gpu" for job in plain) / len(plain) == pytest.approx(0.48, abs=0.02)
    assert {job.request.tasks * job.request.needs.gpus for job in work.jobs if job.request.tasks > 1} >= {8, 16, 32, 64}
    for job in work.jobs:
        allowed = job.request.countries_allowed
        assert not allowed or fleet.hub(job.home).country in allowed  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("job_share = 0.6", "job_share = 0.6\ngpu_time_share = 0.1", "either `job_share` or `gpu_time_share`"),
        ("load = 1.3", "load = 0", "load"),
        ("tasks_min = 2", "tasks_min = 9", "`tasks_min` is more than `tasks`"),
        ('name = "small"', "name = ", "not TOML"),
        ("gpu_fraction = [[0.5, 1.0], [0.3, 1.0]]", "gpu_fraction = [[1.5, 1.0]]", "at most 1"),
    ],
)
def test_a_mistake_in_a_mix_is_named(before: str, after: str, says: str) -> None:
    from unit.simulate_fleet.conftest import MIX

    with pytest.raises(HarchError, match=says):
        parse_mix(MIX.replace(before, after).encode())


def test_a_trace_is_read_by_the_names_of_its_columns(tmp_path: Path, fleet: Fleet) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrival_s,duration_s,gpus,home,class,countries,gpu_fraction,gpu_memory_gb,tasks\n"
        "60,3600,1,South,inference,SN|MA,0.5,20.5,\n"
        "0,10,1,,,,,,4\n"
        "90000,10,1,,,,,,1\n"
    )
    work = read_trace(path, fleet, hours=2)
    first, second = work.jobs
    assert (first.request.tasks, first.home, first.request.turn_class) == (4, "north", SchedulingClass.TRAINING)
    assert second.home == "south"
    assert second.request.countries_allowed == ("SN", "MA")
    assert (second.request.needs.gpu_milli, second.request.needs.gpu_memory_gb) == (500, 20.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("arrival_s,gpus\n0,1\n", "no column `duration_s`"),
        ("arrival_s,duration_s,gpus,colour\n0,1,1,red\n", "`colour`"),
        ("arrival_s,duration_s,gpus\n0,ten,1\n", "line 2: `duration_s` is invalid: `ten`"),
        ("arrival_s,duration_s,gpus,home\n0,1,1,Mars\n", "no hub in the fleet is named `mars`"),
        ("arrival_s,duration_s,gpus,tasks,tasks_min\n0,1,1,2,3\n", "tasks_min"),
        ("arrival_s,duration_s,gpus,gpu_fraction\n0,1,2,0.5\n", "gpu_fraction"),
        ("arrival_s,duration_s,gpus,gpu_memory_gb\n0,1,1,20\n", "line 2: .*needs `gpu_fraction`"),
        ("arrival_s,duration_s,gpus,gpu_fraction,gpu_memory_gb\n0,1,1,0.5,-1\n", "`gpu_memory_gb` is invalid: `-1`"),
        ("arrival_s,duration_s,gpus,gpu_fraction,gpu_memory_gb\n0,1,1,0.5,nan\n", "is invalid: `nan`"),
        ("arrival_s,duration_s,gpus,id\n0,1,1,a\n0,1,1,a\n", "twice"),
        ("arrival_s,duration_s,gpus\n", "lists no job"),
    ],
)
def test_a_mistake_in_a_trace_is_named_with_its_line(tmp_path: Path, fleet: Fleet, text: str, says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(HarchError, match=says):
        read_trace(path, fleet, hours=1)
