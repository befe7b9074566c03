"""Does an image come from its registry once, by its digest, and from then on from the hub?"""

from __future__ import annotations

import base64
import json
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from image_fakes import MemoryHub, Node
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.content.image_reference import RegistryImage, parse_image
from harch.execution.images.manifest import OCI_MANIFEST
from harch.testing.images import LayerFile, LayoutWriter, RegistryProcess, folder, layer, symlink
from harch.testing.ports import free_port
from harch.wire.content import TreeView

pytestmark = pytest.mark.needs("bubblewrap", "skopeo", "umoci", "docker-registry")

BASE = layer([folder("etc"), LayerFile("etc/base", os.urandom(100_000)), folder("app"), LayerFile("app/old", b"1")])
ON_TOP = layer([LayerFile("app/.wh.old"), LayerFile("app/new", b"2"), symlink("bin", "usr/bin")])
ABSENT = "sha256:" + "7" * 64
PASSWORD = "s3cr3t-w0rd"
ACCOUNT = "user:$2y$05$abcdefghijklmnopqrstuuswOJ.QUCpuyZO9HSy3fJrzByYtDTJTK"  # that password


class Stopped(Exception):
    pass


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    with RegistryProcess(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def hub(tmp_path: Path) -> MemoryHub:
    (tmp_path / "hub").mkdir()
    return MemoryHub(tmp_path / "hub")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def image(name: str) -> RegistryImage:
    parsed = parse_image(name)
    assert isinstance(parsed, RegistryImage)
    return parsed


def new_requests(registry: RegistryProcess, before: int) -> list[str]:
    return registry.requests()[before:]


def test_a_tag_becomes_a_digest_and_the_digest_files(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    layout = LayoutWriter(tmp_path / "image", {"Env": ["A=1"], "User": "1000"}).write(BASE, ON_TOP)
    registry.push(layout.folder, "team/plain:1")
    before = len(registry.requests())
    prepared = node.prepare(image(f"{registry.address}/team/plain:1"), hub)
    assert prepared.digest == layout.digest
    assert prepared.record.env == {"A": "1"}
    root = Path(prepared.rootfs.path)
    assert sorted(os.listdir(root / "app")) == ["new"], "the upper layer has taken a file away"
    assert os.readlink(root / "bin") == "usr/bin"
    assert (root / "etc" / "base").stat().st_uid == os.getuid()
    fetched = [one for one in new_requests(registry, before) if one.startswith("GET")]
    assert sum("/manifests/1" in one for one in fetched) == 1, "the tag is resolved once"
    assert sum("/blobs/" in one for one in fetched) == 3
    log = "\n".join(node.lines)
    assert layout.digest in log
    assert "its user 1000 is not used" in log
    assert any("of" in detail for detail in node.details), "how far it is can be seen"
    assert node.cache.reserved, "room was made before it was unpacked"


def test_the_second_node_has_it_from_the_hub_and_the_registry_hears_nothing(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    layout = LayoutWriter(tmp_path / "image").write(BASE)
    registry.push(layout.folder, "team/twice:1")
    name = f"{registry.address}/team/twice"
    node.prepare(image(f"{name}:1"), hub)
    before = len(registry.requests())
    for number, reference in enumerate((f"{name}:1", f"{name}@{layout.digest}")):
        other = Node(tmp_path / f"other{number}")
        prepared = other.prepare(image(reference), hub)
        assert prepared.digest == layout.digest
        assert (Path(prepared.rootfs.path) / "app" / "old").read_bytes() == b"1"
    assert new_requests(registry, before) == []


def test_images_that_share_layers_give_them_to_the_hub_once(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    first = LayoutWriter(tmp_path / "first").write(BASE)
    second = LayoutWriter(tmp_path / "second").write(BASE, ON_TOP)
    for number, layout in enumerate((first, second)):
        registry.push(layout.folder, f"team/shared{number}:1")
        node.prepare(image(f"{registry.address}/team/shared{number}:1"), hub)
    sent = [f"sha256:{name}" for name in hub.blobs_sent]
    assert len(sent) == len(set(sent))
    assert sent.count(second.layer_digests[0]) == 1
    assert second.layer_digests[1] in sent


def test_an_image_that_is_on_the_node_is_not_fetched_again(
    registry: RegistryProcess, node: Node, tmp_path: Path
) -> None:
    layout = LayoutWriter(tmp_path / "image").write(BASE)
    registry.push(layout.folder, "team/once:1")
    reference = image(f"{registry.address}/team/once:1")
    node.prepare(reference)
    before = len(registry.requests())
    node.prepare(reference)
    assert not any("/blobs/" in one for one in new_requests(registry, before))
    assert len(node.cache.made) == 1


def test_an_image_of_docker_keeps_its_digest_on_its_way_through_the_hub(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    layout = LayoutWriter(tmp_path / "image").write(BASE, ON_TOP)
    digest = registry.push(layout.folder, "team/docker:1", "--format", "v2s2")
    assert digest != layout.digest
    reference = image(f"{registry.address}/team/docker@{digest}")
    assert node.prepare(reference, hub).digest == digest
    other = Node(tmp_path / "other").prepare(reference, hub)
    assert other.digest == digest
    assert (Path(other.rootfs.path) / "app" / "new").read_bytes() == b"2"


def test_of_an_image_for_several_platforms_comes_the_one_for_this_and_its_index_is_its_name_too(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    here = LayoutWriter(tmp_path / "image", architecture="amd64").write(BASE)
    there = LayoutWriter(tmp_path / "image", architecture="arm64").write(ON_TOP)
    index = here.write_platforms({"arm64": there.digest})
    assert registry.push(here.folder, "team/many:1", "--all") == index
    name = f"{registry.address}/team/many"
    before = len(registry.requests())
    assert node.prepare(image(f"{name}@{index}"), hub).digest == here.digest
    assert not any(there.layer_digests[0] in one for one in new_requests(registry, before))
    before = len(registry.requests())
    other = Node(tmp_path / "other").prepare(image(f"{name}@{index}"), hub)
    assert other.digest == here.digest
    assert other.record.digests == (here.digest, index), "its digest was checked on the way"
    assert new_requests(registry, before) == []


def test_a_hub_that_has_another_image_under_a_digest_is_not_believed(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    wanted = LayoutWriter(tmp_path / "wanted").write(BASE)
    forged = LayoutWriter(tmp_path / "forged").write(ON_TOP)
    registry.push(wanted.folder, "team/wanted:1")
    registry.push(forged.folder, "team/forged:1")
    node.prepare(image(f"{registry.address}/team/forged:1"), hub)
    view = next(iter(hub.names.values()))
    reference = image(f"{registry.address}/team/wanted@{wanted.digest}")
    hub.names[f"{reference}#linux/amd64"] = view  # as if it were that one
    with pytest.raises(HarchError, match="and its registry") as refused:
        node.prepare(reference, hub)
    assert refused.value.code == "E1132"
    hub.names[f"{reference}#linux/amd64"] = replace(view, name=wanted.digest)
    prepared = Node(tmp_path / "other").prepare(reference, hub)
    assert (prepared.digest, os.path.exists(f"{prepared.rootfs.path}/etc/base")) == (wanted.digest, True)


def test_what_the_registry_says_of_a_tag_is_not_overruled_by_what_the_hub_has(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    wanted = LayoutWriter(tmp_path / "wanted").write(BASE, ON_TOP)
    other = LayoutWriter(tmp_path / "other").write(ON_TOP)
    registry.push(other.folder, "team/overruled:0")
    registry.push(wanted.folder, "team/overruled:1")
    name = f"{registry.address}/team/overruled"
    node.prepare(image(f"{name}:0"), hub)
    hub.names = {f"{name}@{wanted.digest}#linux/amd64": hub.names[f"{name}@{other.digest}#linux/amd64"]}
    assert node.prepare(image(f"{name}:1"), hub).digest == wanted.digest


def test_a_tag_that_has_moved_is_another_image_for_new_work_and_the_same_for_work_that_had_it(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    first = LayoutWriter(tmp_path / "first").write(BASE)
    second = LayoutWriter(tmp_path / "second").write(ON_TOP)
    reference = image(f"{registry.address}/team/moved:1")
    registry.push(first.folder, "team/moved:1")
    node.prepare(reference, hub)
    registry.push(second.folder, "team/moved:1")
    assert node.prepare(reference, hub).digest == first.digest, "the hub has pinned it for this work"
    del hub.names[f"{reference}#linux/amd64"]  # as for other work
    assert node.prepare(reference, hub).digest == second.digest


def test_an_image_is_kept_under_its_own_digest_whatever_the_hub_calls_it(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    """Else the next work that names that other digest would run in it."""
    layout = LayoutWriter(tmp_path / "image").write(BASE)
    index = layout.write_platforms({})
    registry.push(layout.folder, "team/misnamed:1", "--all")
    reference = image(f"{registry.address}/team/misnamed@{index}")
    node.prepare(reference, hub)
    key = f"{reference}#linux/amd64"
    hub.names[key] = replace(hub.names[key], name=ABSENT)
    other = Node(tmp_path / "other")
    with pytest.raises(HarchError, match="and its registry") as refused:
        other.prepare(reference, hub)
    assert refused.value.code == "E1132"
    assert os.listdir(other.cache.folder) == []


def test_a_damaged_copy_at_the_hub_costs_a_fetch_from_the_registry(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    layout = LayoutWriter(tmp_path / "image").write(BASE)
    registry.push(layout.folder, "team/damaged-copy:1")
    reference = image(f"{registry.address}/team/damaged-copy@{layout.digest}")
    node.prepare(reference, hub)
    shutil.rmtree(next(hub.folder.iterdir()) / "blobs")
    other = Node(tmp_path / "other")
    assert other.prepare(reference, hub).digest == layout.digest
    assert any("of no use" in line for line in other.lines)
    before = len(registry.requests())
    assert Node(tmp_path / "third").prepare(reference, hub).digest == layout.digest
    assert new_requests(registry, before) == [], "the hub has a good copy again"


def test_a_hub_that_does_not_say_which_image_it_has_is_of_no_use(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    layout = LayoutWriter(tmp_path / "image").write(BASE)
    registry.push(layout.folder, "team/unnamed:1")
    reference = image(f"{registry.address}/team/unnamed:1")
    hub.names[f"{reference}#linux/amd64"] = TreeView(ref="x", digest="x", name=str(reference))
    assert node.prepare(reference, hub).digest == layout.digest


def test_a_hub_without_room_for_the_image_does_not_keep_work_from_running(
    registry: RegistryProcess, node: Node, hub: MemoryHub, tmp_path: Path
) -> None:
    layout = LayoutWriter(tmp_path / "image").write(BASE)
    registry.push(layout.folder, "team/no-room:1")
    hub.refuses = HarchError("E1103", "the tenant would keep too much", hint="")
    assert node.prepare(image(f"{registry.address}/team/no-room:1"), hub).digest == layout.digest
    assert any("E1103" in line for line in node.lines)
    assert hub.names == {}


def test_an_image_that_the_registry_does_not_have_is_said_to_be_absent(registry: RegistryProcess, node: Node) -> None:
    for reference in ("team/absent:1", f"team/absent@{ABSENT}"):
        with pytest.raises(HarchError, match="the registry has no such image") as refused:
            node.prepare(image(f"{registry.address}/{reference}"))
        assert refused.value.code == "E1132"


def test_a_registry_that_does_not_answer_is_named(node: Node) -> None:
    with pytest.raises(HarchError, match="the registry does not answer") as refused:
        node.prepare(image(f"127.0.0.1:{free_port()}/team/x:1"))
    assert refused.value.code == "E1132"
    assert "data object" in (refused.value.hint or "")


def test_a_registry_without_tls_is_refused_unless_it_is_on_this_machine_or_listed(
    registry: RegistryProcess, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = LayoutWriter(tmp_path / "image").write(BASE)
    registry.push(layout.folder, "team/plain-http:1")
    monkeypatch.setattr("harch.execution.images.limits.is_loopback", lambda registry: False)  # as if it were elsewhere
    reference = image(f"{registry.address}/team/plain-http:1")
    with pytest.raises(HarchError, match="does not prove who it is") as refused:
        node.prepare(reference)
    assert "HARCH_INSECURE_REGISTRIES" in (refused.value.hint or "")
    listed = Node(tmp_path / "listed", insecure_registries=frozenset({registry.address}))
    assert listed.prepare(reference).digest == layout.digest


def test_a_manifest_that_was_changed_in_the_registry_is_noticed(
    registry: RegistryProcess, node: Node, tmp_path: Path
) -> None:
    layout = LayoutWriter(tmp_path / "image").write(layer([LayerFile("x", os.urandom(100))]))
    digest = registry.push(layout.folder, "team/changed:1")
    path = registry.blob_path(digest)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(HarchError) as refused:
        node.prepare(image(f"{registry.address}/team/changed@{digest}"))
    assert refused.value.code == "E1132"


def test_a_registry_that_hands_out_another_image_than_requested_is_not_believed(node: Node, tmp_path: Path) -> None:
    layout = LayoutWriter(tmp_path / "image").write(BASE)
    manifest = (layout.folder / "blobs" / "sha256" / layout.digest.removeprefix("sha256:")).read_bytes()

    class LyingRegistry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", OCI_MANIFEST)
            self.send_header("Content-Length", str(len(manifest)))
            self.end_headers()
            self.wfile.write(manifest)

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), LyingRegistry) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            with pytest.raises(HarchError, match=f"handed out {layout.digest}") as refused:
                node.prepare(image(f"127.0.0.1:{server.server_port}/team/x@{ABSENT}"))
        finally:
            server.shutdown()
            serving.join()
    assert refused.value.code == "E1132"


def test_a_layer_that_was_changed_in_the_registry_is_noticed(
    registry: RegistryProcess, node: Node, tmp_path: Path
) -> None:
    layout = LayoutWriter(tmp_path / "image").write(layer([LayerFile("x", os.urandom(5000))]))
    registry.push(layout.folder, "team/changed-layer:1")
    path = registry.blob_path(layout.layer_digests[0])
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(HarchError) as refused:
        node.prepare(image(f"{registry.address}/team/changed-layer:1"))
    assert refused.value.code == "E1132"
    assert node.cache.made == []


def test_an_image_above_the_limit_is_refused_before_its_layers_travel(
    registry: RegistryProcess, tmp_path: Path
) -> None:
    layout = LayoutWriter(tmp_path / "image").write(BASE)
    registry.push(layout.folder, "team/large:1")
    before = len(registry.requests())
    with pytest.raises(HarchError, match="too large for this node") as refused:
        Node(tmp_path / "node", bytes_max=10_000).prepare(image(f"{registry.address}/team/large:1"))
    assert refused.value.code == "E1133"
    assert not any("/blobs/" in one for one in new_requests(registry, before))


def test_credentials_reach_their_registry_and_no_log(tmp_path: Path) -> None:
    layout = LayoutWriter(tmp_path / "image").write(BASE)
    auth = tmp_path / "auth.json"
    node = Node(tmp_path / "node", auth_file=str(auth))
    with RegistryProcess(tmp_path / "closed-registry", account=ACCOUNT) as registry:
        registry.push(layout.folder, "team/closed:1", f"--dest-creds=user:{PASSWORD}")
        reference = image(f"{registry.address}/team/closed:1")
        with pytest.raises(HarchError, match="asks for credentials") as refused:
            Node(tmp_path / "without").prepare(reference)
        assert refused.value.code == "E1132"
        encoded = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
        auth.write_text(json.dumps({"auths": {registry.address: {"auth": encoded}}}))
        assert node.prepare(reference).digest == layout.digest
        assert not any(PASSWORD in line or encoded in line for line in node.lines)
        auth.unlink()
        with pytest.raises(HarchError, match="the agent cannot read") as refused:
            node.prepare(reference)
    assert "HARCH_REGISTRY_AUTH_FILE" in (refused.value.hint or "")


def test_stopping_a_task_stops_the_fetch(registry: RegistryProcess, node: Node, tmp_path: Path) -> None:
    layout = LayoutWriter(tmp_path / "image").write(BASE)
    registry.push(layout.folder, "team/stopped:1")
    node.stop = Stopped()
    with pytest.raises(Stopped):
        node.store.prepare(
            image(f"{registry.address}/team/stopped:1"), hub=None, borrow=node.cache.borrow, hooks=node.hooks
        )
    assert list(node.scratch.iterdir()) == []
