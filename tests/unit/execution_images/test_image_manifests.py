"""Is an image taken apart as its maker meant it, and refused where nothing here could unpack it?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from harch.base.errors import HarchError
from harch.execution.images.manifest import (
    CONFIG_BYTES_MAX,
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    ENV_ENTRIES_MAX,
    LAYERS_MAX,
    MANIFEST_BYTES_MAX,
    MANIFESTS_MAX,
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_MANIFEST,
    Platform,
    digest_of,
    index_of,
    is_index,
    layout_digest,
    manifest_for_unpacking,
    platform_of,
    read_config,
    read_manifest,
    select,
)

HERE = Platform("linux", "amd64")
GZIP, ZSTD, PLAIN = b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd", b"bin/"


def digest(number: int) -> str:
    return f"sha256:{number:064x}"


def manifest(*layers: dict[str, Any], **changes: Any) -> bytes:
    config = {"mediaType": OCI_CONFIG, "digest": digest(0), "size": 10}
    fields = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers}
    return json.dumps({**fields, **changes}).encode()


def layer(number: int, **changes: Any) -> dict[str, Any]:
    return {"mediaType": OCI_LAYER + "+gzip", "digest": digest(number), "size": 100, **changes}


def index(*platforms: tuple[str, str] | None, media_type: str = OCI_INDEX) -> bytes:
    entries = [
        {
            "mediaType": OCI_MANIFEST,
            "digest": digest(number),
            "size": 5,
            **({"platform": {"os": one[0], "architecture": one[1]}} if one is not None else {}),
        }
        for number, one in enumerate(platforms)
    ]
    return json.dumps({"schemaVersion": 2, "mediaType": media_type, "manifests": entries}).encode()


def test_the_image_for_this_platform_is_chosen_from_an_index_of_either_kind() -> None:
    for media_type in (OCI_INDEX, DOCKER_INDEX):
        found = index(("unknown", "unknown"), ("linux", "arm64"), ("linux", "amd64"), media_type=media_type)
        assert is_index(found)
        assert select(found, HERE).digest == digest(2)
        assert select(found, platform_of("aarch64")).digest == digest(1)


def test_an_image_for_other_platforms_names_them() -> None:
    with pytest.raises(HarchError, match="not made for linux/amd64, but for linux/arm64, windows/amd64") as refused:
        select(index(("linux", "arm64"), ("windows", "amd64")), HERE)
    assert refused.value.code == "E1133"


def test_a_layout_with_one_image_needs_no_platform_and_one_with_two_says_that_nothing_chooses() -> None:
    assert select(index(None), HERE).digest == digest(0)
    with pytest.raises(HarchError, match="there are 2 images in it"):
        select(index(None, None), HERE)


def test_an_index_without_end_and_a_configuration_without_end_are_refused() -> None:
    with pytest.raises(HarchError, match=f"at most {MANIFESTS_MAX} are allowed"):
        select(index(*[("linux", "amd64")] * (MANIFESTS_MAX + 1)), HERE)
    config = {"mediaType": OCI_CONFIG, "digest": digest(0), "size": CONFIG_BYTES_MAX + 1}
    with pytest.raises(HarchError, match="its configuration is too large"):
        read_manifest(manifest(layer(1), config=config))


def test_an_image_without_a_media_type_is_told_from_an_index_by_what_it_has() -> None:
    assert is_index(json.dumps({"schemaVersion": 2, "manifests": []}).encode())
    assert not is_index(manifest(layer(1), mediaType=""))
    assert not is_index(manifest(layer(1), mediaType=DOCKER_MANIFEST))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"not json", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"schemaVersion": 1}', "format that was given up"),
        (b" " * (MANIFEST_BYTES_MAX + 1), "larger than"),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(HarchError, match=why) as refused:
        is_index(data)
    assert refused.value.code == "E1133"


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([layer(number) for number in range(LAYERS_MAX + 1)], f"at most {LAYERS_MAX} are allowed"),
        ([layer(1, digest="sha256:../../etc/passwd")], "names a part that cannot be one"),
        ([layer(1, digest="md5:" + "0" * 32)], "names a part that cannot be one"),
        ([layer(1, size=-1)], "names a part that cannot be one"),
        ([layer(1, mediaType=OCI_LAYER + "+gzip+encrypted")], "encrypted"),
        ([layer(1, urls=["https://elsewhere.example.org/layer"])], "kept at other addresses"),
    ],
)
def test_an_image_that_cannot_be_unpacked_is_refused_before_it_is_fetched(
    layers: list[dict[str, Any]], why: str
) -> None:
    with pytest.raises(HarchError, match=why) as refused:
        read_manifest(manifest(*layers))
    assert refused.value.code == "E1133"


def test_a_hub_reads_the_digest_of_an_image_from_its_layout() -> None:
    data = manifest(layer(1))
    assert layout_digest(index_of(data, OCI_MANIFEST)) == digest_of(data)
    for other in (b"{", index(None, None), index_of(data, OCI_MANIFEST).replace(b"sha256", b"sha512")):
        assert layout_digest(other) == ""


def test_a_layer_that_is_there_twice_travels_once() -> None:
    assert read_manifest(manifest(layer(1), layer(2), layer(1))).size_bytes == 10 + 2 * 100


def test_layers_are_called_for_umoci_what_their_bytes_are() -> None:
    read = read_manifest(manifest(layer(1), layer(2, mediaType="application/vnd.docker.image.rootfs.diff.tar.gzip")))
    made = json.loads(manifest_for_unpacking(read, [GZIP, PLAIN]))
    assert [one["mediaType"] for one in made["layers"]] == [OCI_LAYER + "+gzip", OCI_LAYER]
    assert [one["digest"] for one in made["layers"]] == [digest(1), digest(2)]
    assert made["config"] == {"mediaType": OCI_CONFIG, "digest": digest(0), "size": 10}
    with pytest.raises(HarchError, match="layer 2 is compressed with zstd"):
        manifest_for_unpacking(read, [GZIP, ZSTD])


def test_a_configuration_tells_what_processes_get_and_what_it_is_made_for() -> None:
    config = {
        "os": "linux",
        "architecture": "amd64",
        "config": {
            "Env": ["PATH=/opt/bin:/bin", "A=b=c", "EMPTY=", "not-a-name=x", "NUL=a\0b"],
            "Entrypoint": ["/entry"],
            "Cmd": None,
            "WorkingDir": "/app",
            "User": "1000",
        },
    }
    read = read_config(json.dumps(config).encode(), HERE)
    assert read.env == {"PATH": "/opt/bin:/bin", "A": "b=c", "EMPTY": ""}
    assert (read.entrypoint, read.cmd, read.workdir, read.user) == (("/entry",), (), "/app", "1000")
    with pytest.raises(HarchError, match="not made for linux/arm64, but for linux/amd64"):
        read_config(json.dumps(config).encode(), Platform("linux", "arm64"))


def test_a_configuration_without_anything_is_one() -> None:
    read = read_config(b"{}", HERE)
    assert (read.env, read.entrypoint, read.workdir) == ({}, (), "")


def test_an_environment_has_a_limit() -> None:
    entries = [f"V{number}=x" for number in range(ENV_ENTRIES_MAX + 1)]
    with pytest.raises(HarchError, match="too many environment variables"):
        read_config(json.dumps({"config": {"Env": entries}}).encode(), HERE)
    with pytest.raises(HarchError, match="too many environment variables"):
        read_config(json.dumps({"config": {"Env": ["A=" + "x" * 100_000]}}).encode(), HERE)
