"""Does the default policy in Rego say what the compiled rules say, on random worlds?"""

from __future__ import annotations

from random import Random

import pytest

from harch.sovereignty.compiled import Rules
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.policy.document import compiled_answer, document_of, world_document
from harch.sovereignty.policy.evaluation import DEFAULT, DEFAULT_ALLOW, DEFAULT_DENY, program_of, read_bundle
from harch.sovereignty.policy.supervisor import PolicyWorker, WorkerLimits
from harch.sovereignty.policy.verdict import read_reasons, read_verdict
from harch.testing.policy_cases import random_question, random_world

CASES_PER_WORLD = 400


@pytest.mark.parametrize("seed", range(8))
async def test_rego_and_compiled_rules_agree(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    rules = Rules(world)
    program = program_of(read_bundle(DEFAULT), world_document(world, shipped_jurisdictions()))
    questions = [random_question(random, world) for _ in range(CASES_PER_WORLD)]
    documents = [document_of(question) for question in questions]
    async with PolicyWorker(program, limits=WorkerLimits(answer_s=60, cpu_s=60)) as worker:
        answers = await worker.evaluate_many(DEFAULT_ALLOW, documents)
        compiled = [compiled_answer(rules, question) for question in questions]
        wrong = [
            (question, expected)
            for question, answer, expected in zip(questions, answers, compiled, strict=True)
            if read_verdict(answer).allowed != expected or read_verdict(answer).is_fault
        ]
        assert wrong == []
        refused = [document for document, allowed in zip(documents, compiled, strict=True) if not allowed][:50]
        reasons = await worker.evaluate_many(DEFAULT_DENY, refused)
        assert all(read_reasons(answer) for answer in reasons), "every no has a reason"
    assert 0 < sum(compiled) < CASES_PER_WORLD
