"""Does a reference name the image that every other tool of the trade would take?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.content.image_reference import DataImage, RegistryImage, is_loopback, parse_image

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("ubuntu:24.04", "docker.io/library/ubuntu:24.04"),
        ("team/train:1", "docker.io/team/train:1"),
        ("index.docker.io/ubuntu", "docker.io/library/ubuntu:latest"),
        ("registry.example/train", "registry.example/train:latest"),
        ("Registry.Example:5000/a/b/c_d:V1", "registry.example:5000/a/b/c_d:V1"),
        ("localhost/train:1", "localhost/train:1"),
        ("127.0.0.1:5000/train:1", "127.0.0.1:5000/train:1"),
        ("[::1]:5000/train:1", "[::1]:5000/train:1"),
        (f"registry.example/train@{DIGEST}", f"registry.example/train@{DIGEST}"),
        (f"registry.example/train:1@{DIGEST}", f"registry.example/train:1@{DIGEST}"),
        ("data:My image.v1", "data:My image.v1"),
    ],
)
def test_one_image_has_one_name(text: str, normal: str) -> None:
    assert str(parse_image(text)) == normal
    assert parse_image(normal) == parse_image(text)


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("", "has no repository", "write `registry/name:tag`"),
        ("docker://ubuntu", "is an address", "leave out `docker://`"),
        ("HTTPS://registry.example/x", "is an address", "leave out `https://`"),
        ("registry.example/Train:1", "has no repository in lower case", "`registry.example/train:1`"),
        ("registry.example/a//b", "has no repository", "write"),
        ("registry.example/../etc", "has no repository", "write"),
        ("registry.example/x:a b", "a tag with characters", "write"),
        ("registry.example/x:", "a tag with characters", "write"),
        ("registry.example/x@sha256:12", "64 hexadecimal digits", "write"),
        ("registry.example/x@md5:" + "0" * 64, "64 hexadecimal digits", "write"),
        ("-bad.example/x", "that is no host", "write"),
        ("registry.example:99999/x", "that is no host", "write"),
        ("--help", "has no repository", "write"),
        ("data:", "names no data object", "write"),
        ("data:../x", "names no data object", "write"),
        ("registry.example/" + "a" * 300, "more than 255 characters", "write"),
        ("registry.example/x:1\n", "a tag with characters", "write"),
    ],
)
def test_what_names_no_image_is_refused_with_what_to_write_instead(text: str, why: str, hint: str) -> None:
    with pytest.raises(HarchError) as refused:
        parse_image(text)
    assert refused.value.code == "E1130"
    assert why in refused.value.message
    assert hint in (refused.value.hint or "")


def test_an_image_at_a_digest_has_no_tag_that_could_name_another_one_tomorrow() -> None:
    image = parse_image("registry.example/train:1")
    assert isinstance(image, RegistryImage)
    assert str(image.at(DIGEST)) == f"registry.example/train@{DIGEST}"


def test_only_this_machine_is_loopback() -> None:
    for registry in ("localhost", "localhost:5000", "127.0.0.1:5000", "127.9.9.9", "[::1]:5000", "[::1]"):
        assert is_loopback(registry), registry
    for registry in ("registry.example", "127.example:5000", "localhost.example", "10.0.0.1:5000", "[::2]:5000"):
        assert not is_loopback(registry), registry


@given(st.text(max_size=60))
def test_any_text_is_an_image_that_reads_the_same_again_or_is_refused(text: str) -> None:
    try:
        image = parse_image(text)
    except HarchError:
        return
    assert parse_image(str(image)) == image
    assert isinstance(image, DataImage) or not str(image).startswith("-")
