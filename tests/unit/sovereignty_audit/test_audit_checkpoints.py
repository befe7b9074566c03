"""Peers keep checkpoints: what they take, and what they refuse."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.sovereignty.audit.chain import ENDED, Draft
from harch.sovereignty.audit.checkpoints import check_offer, introduce, read_checkpoints
from unit.sovereignty_audit.chains import HUB, Chain, chain_of, key


def test_the_first_checkpoint_of_a_hub_is_believed_and_so_is_a_later_one_of_the_same_key() -> None:
    check_offer(chain_of(5).checkpoint(), [])
    check_offer(chain_of(9).checkpoint(), [chain_of(5).checkpoint()])
    check_offer(chain_of(5).checkpoint(), [chain_of(5).checkpoint()])


def test_a_signature_that_does_not_hold_is_refused() -> None:
    signed = chain_of(5).checkpoint()
    with pytest.raises(HarchError) as refused:
        check_offer(replace(signed, signature=signed.signature[:-2] + "00"), [])
    assert refused.value.code == "E0201"


def test_a_second_history_of_the_same_length_is_refused() -> None:
    other = chain_of(4)
    other.add(Draft(ENDED, "wl_9", "done"))
    with pytest.raises(HarchError) as refused:
        check_offer(other.checkpoint(), [chain_of(5).checkpoint()])
    assert refused.value.code == "E0920"


def test_a_key_that_nobody_introduced_is_refused() -> None:
    with pytest.raises(HarchError) as refused:
        check_offer(Chain(key(2)).fill(9).checkpoint(), [chain_of(5).checkpoint()])
    assert refused.value.code == "E0920"


def test_a_new_key_comes_with_the_statements_that_lead_to_it() -> None:
    known = chain_of(5).checkpoint()
    chain = chain_of(5)
    statements = [introduce(HUB, key(2), by=key(1)), introduce(HUB, key(3), by=key(2))]
    chain.rotate(key(2))
    chain.rotate(key(3))
    check_offer(chain.checkpoint(), [known], statements)
    with pytest.raises(HarchError):
        check_offer(chain.checkpoint(), [known], [introduce("dakar", key(3), by=key(1))])
    with pytest.raises(HarchError):
        check_offer(chain.checkpoint(), [known], statements[1:])


def test_a_file_of_checkpoints_is_lines_or_a_page_of_the_api() -> None:
    two = [chain_of(3).checkpoint(), chain_of(5).checkpoint()]
    lines = b"".join(one.line for one in two)
    assert read_checkpoints(lines) == two
    page = b'{"items":[' + b",".join(one.line.strip() for one in two) + b'],"total":2}'
    assert read_checkpoints(page) == two
    with pytest.raises(HarchError) as refused:
        read_checkpoints(b"nothing of the kind")
    assert refused.value.code == "E0202"
