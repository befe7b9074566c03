"""The published client `harchos` 0.2.1 and its CLI, unmodified, against a hub that really listens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources

import pytest
from harchos import HarchOSClient
from harchos.errors import BadRequestError, ConflictError, ForbiddenError, NotFoundError, UnauthorizedError
from harchos.models.hub import HubSpec
from harchos.models.sovereignty import DataResidencyPolicy
from harchos.models.workload import ComputeRequirements, WorkloadSpec, WorkloadStatus, WorkloadType

from harch.testing.hub_process import HubProcess


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A real hub whose agent starts later, so that work waits where a test wants it to wait."""
    toml = resources.files("harch.fleet").joinpath("shipped/five-hubs.toml").read_text()
    with HubProcess(toml, "dakhla", tmp_path_factory.mktemp("hub"), agents={}) as running:
        yield running


@pytest.fixture
def hub_url(hub: HubProcess) -> str:
    return hub.url


@pytest.fixture
def api_key(hub: HubProcess) -> str:
    return hub.key


@pytest.fixture
def client(hub_url: str, api_key: str) -> Iterator[HarchOSClient]:
    with HarchOSClient(api_key=api_key, base_url=f"{hub_url}/v1", max_retries=0) as client:
        yield client


def spec(name: str, **fields: object) -> WorkloadSpec:
    return WorkloadSpec(name=name, type=WorkloadType.TRAINING, **fields)


def harchos(hub_url: str, api_key: str, *words: str) -> str:
    settings = {"HARCHOS_API_KEY": api_key, "HARCHOS_BASE_URL": f"{hub_url}/v1", "HARCHOS_MAX_RETRIES": "0"}
    command = [sys.executable, "-m", "harchos.cli", *words]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_health_is_understood(client: HarchOSClient) -> None:
    health = client.health()
    assert (health.status, health.region) == ("healthy", "morocco")
    assert health.uptime_seconds >= 0


def test_a_specification_reads_back_as_it_was_written(client: HarchOSClient) -> None:
    written = spec(
        "mirror",
        compute=ComputeRequirements(gpu_count=16, gpu_type="H100", cpu_cores=32, memory_gb=128),
        command=["sleep", "60"],
        env={"A": "b"},
        data_residency=DataResidencyPolicy(allowed_regions=["morocco"], restricted_regions=["senegal"]),
        carbon_budget_grams=100_000,  # 16 GPUs for an hour emit some 12 kg: less would be refused
        max_duration_seconds=3600,
        labels={"team": "x"},
        auto_restart=True,
    )
    created = client.workloads.create(written)
    assert created.status in {WorkloadStatus.PENDING, WorkloadStatus.SCHEDULED, WorkloadStatus.RUNNING}
    assert client.workloads.get(created.metadata.id).spec == written
    assert created.metadata.labels == {"team": "x"}


def test_a_retried_creation_is_the_same_workload(client: HarchOSClient) -> None:
    first, second = (client.workloads.create(spec("again", command=["sleep", "60"])) for _ in range(2))
    assert first.metadata.id == second.metadata.id
    with pytest.raises(ConflictError):
        client.workloads.create(spec("again", command=["sleep", "61"]))


def test_the_whole_life_of_a_workload(client: HarchOSClient) -> None:
    ident = client.workloads.create(spec("life")).metadata.id
    assert client.workloads.pause(ident).status == "paused"
    updated = client.workloads.update(ident, spec("life", labels={"a": "b"}, compute=ComputeRequirements(gpu_count=2)))
    assert (updated.spec.compute.gpu_count, updated.metadata.labels) == (2, {"a": "b"})
    assert client.workloads.cancel(ident).metadata.id == ident
    assert client.workloads.wait(ident, timeout=10, poll_interval=0.1).is_terminal
    client.workloads.delete(ident)
    assert ident not in {item.metadata.id for item in client.paginate(client.workloads.list)}


def test_lists_can_be_filtered_and_paged(client: HarchOSClient) -> None:
    for index in range(5):
        client.workloads.create(spec(f"job-{index}", labels={"suite": "paging", "parity": str(index % 2)}))
    assert client.workloads.list(labels={"suite": "paging", "parity": "0"}).total == 3
    assert client.workloads.list(labels={"suite": "paging"}, workload_type=WorkloadType.INFERENCE).total == 0
    assert client.workloads.list(labels={"suite": "paging"}, status=WorkloadStatus.COMPLETED).items == []
    pages = client.paginate(client.workloads.list, per_page=2, labels={"suite": "paging"})
    assert sorted(item.metadata.name for item in pages) == [f"job-{index}" for index in range(5)]


def test_hubs_regions_and_monitoring_are_understood(client: HarchOSClient) -> None:
    hubs = client.hubs.list()
    assert hubs.total == len(hubs.items) > 1
    assert hubs.total_gpus > 0
    own = client.hubs.list(region="morocco").items[0]
    assert own.spec.region == "morocco"
    assert client.hubs.get(own.metadata.id).is_ready
    assert client.hubs.capacity(own.metadata.id).total_gpus == own.capacity.total_gpus
    assert "MA" in {region.country for region in client.regions.list()}
    assert client.regions.get("morocco") == client.regions.get("MA")
    assert client.monitoring.metrics().total_gpus == hubs.total_gpus
    assert client.monitoring.detailed_health().is_healthy


def test_errors_have_the_clients_own_classes_and_our_words(client: HarchOSClient, hub_url: str) -> None:
    with pytest.raises(NotFoundError, match="nope"):
        client.workloads.get("nope")
    with pytest.raises(BadRequestError, match="atlantis"):
        client.workloads.create(spec("x", data_residency=DataResidencyPolicy(allowed_regions=["atlantis"])))
    with pytest.raises(ConflictError, match="names hub `dakar`"):
        client.workloads.create(spec("x", hub_id="dakar"))
    with pytest.raises((ForbiddenError, ConflictError)):  # by the role of the key, else because of the fleet file
        client.hubs.create(HubSpec(name="new", region="morocco"))
    with pytest.raises(NotFoundError, match="atlantis"):
        client.carbon.get_intensity("atlantis")
    stranger = HarchOSClient(api_key="hsk_0123456789abcdef0123", base_url=f"{hub_url}/v1", max_retries=0)
    with stranger, pytest.raises(UnauthorizedError):
        stranger.workloads.list()


async def test_the_async_client_works_too(hub_url: str, api_key: str) -> None:
    async with HarchOSClient(api_key=api_key, base_url=f"{hub_url}/v1", max_retries=0) as client:
        created = await client.workloads.async_create(spec("async"))
        stream = client.stream("GET", "/events", params={"after": 0, "subject": created.metadata.id})
        async for event in stream:
            assert event["subject"] == created.metadata.id
            break
        await stream.aclose()
        await client.workloads.async_delete(created.metadata.id)


def test_the_cli_prints_what_the_hub_knows(hub_url: str, api_key: str, client: HarchOSClient) -> None:
    client.workloads.create(spec("shown"))
    status = harchos(hub_url, api_key, "status")
    assert "healthy" in status
    assert "morocco" in status
    assert "ready" in harchos(hub_url, api_key, "hubs")
    assert "shown" in harchos(hub_url, api_key, "workloads")
    assert "No workloads" in harchos(hub_url, api_key, "workloads", "-s", "completed")


def test_work_really_runs_and_its_end_is_awaited(hub: HubProcess, client: HarchOSClient) -> None:
    hub.add_agent("agent")
    created = client.workloads.create(spec("runs", command=["/bin/sh", "-c", "exit 0"]))
    done = client.workloads.wait(created.metadata.id, timeout=30, poll_interval=0.1)
    assert done.status == WorkloadStatus.COMPLETED
    assert done.started_at is not None
    failed = client.workloads.create(spec("fails", command=["/bin/sh", "-c", "exit 9"]))
    ended = client.workloads.wait(failed.metadata.id, timeout=30, poll_interval=0.1)
    assert (ended.status, "code 9" in (ended.error_message or "")) == (WorkloadStatus.FAILED, True)


def test_carbon_is_understood_and_says_that_it_is_modelled(client: HarchOSClient, hub_url: str, api_key: str) -> None:
    morocco = client.carbon.get_intensity("MA")
    assert (morocco.carbon_intensity_gco2_kwh, morocco.source) == (630.0, "modelled")
    assert [zone.zone for zone in client.carbon.list_intensities().zones] == ["MA"]  # the other hubs are not there
    assert len(client.carbon.get_forecast("MA", hours=5).forecast) == 20
    assert client.carbon.optimal_hub(gpu_count=1).action in {"schedule_now", "no_suitable_hub"}
    assert client.carbon.optimize(workload_name="job").workload_name == "job"
    assert client.carbon.get_metrics(period_days=7).total_carbon_saved_kg == 0
    assert client.carbon.get_dashboard().hub_intensities[0].zone == "MA"
    assert "MA" in harchos(hub_url, api_key, "carbon", "MA")
