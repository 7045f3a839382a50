"""`make prove-structured`: answers of a model of noise under 1,000 generated schemas, of which all that end are valid.

An interrupted run goes on where it was, as long as what it proves is the same source; the outcome is recorded in
benchmarks/results.
"""

import argparse
import json
import time
from collections import Counter
from importlib.metadata import version

import jsonschema
import msgspec

from engine.proposer import NgramProposer
from engine.types import GenerationOutput, GenerationRequest
from tests.engine.structured.structures import of_schema
from tests.engine.tiny import CONTEXT_LENGTH, last, run, text, tiny_engine, tiny_request
from tests.generated_schemas import Schema, generated_schema
from tests.proof import load_progress, record, save_progress, source_digest

NAME = "structured"
SOURCES = ("engine", "models", "kernels", "tests/generated_schemas.py", "tests/engine/tiny.py")

SCHEMAS_A_ROUND = 50
MAX_TOKENS = CONTEXT_LENGTH - 100
# Of the answers to a round's schemas: none of the kinds below may be missing from a proof.
KINDS = ("greedy", "drawn", "narrow", "two choices")


class Progress(msgspec.Struct):
    """What was gone through without a fault. Schemas are seeds: schema 7 is the same everywhere."""

    source: str
    num_schemas: int = 0
    seconds: float = 0.0
    seen: dict[str, int] = {}


def main() -> None:
    """Run rounds until there are enough schemas, and record what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=1_000, help="schemas in all (default: %(default)s)")
    parser.add_argument("--restart", action="store_true", help="forget the progress of an interrupted run")
    arguments = parser.parse_args()
    fresh = Progress(source_digest(SOURCES, version("llguidance")))
    progress = fresh if arguments.restart else load_progress(NAME, fresh)
    while progress.num_schemas < arguments.schemas:
        run_round(progress)
        save_progress(NAME, progress)
        print(f"{progress.num_schemas:,} of {arguments.schemas:,} schemas: {progress.seen}", flush=True)
    report(progress)


def run_round(progress: Progress) -> None:
    """The next schemas, all in one batch with a pool too small for it, and drafts; what is wrong raises."""
    started_s = time.monotonic()
    seeds = range(progress.num_schemas, progress.num_schemas + SCHEMAS_A_ROUND)
    schemas = {seed: generated_schema(seed) for seed in seeds}
    engine = tiny_engine(num_blocks=66, proposer=NgramProposer(shortest=2, longest=3, num_tokens=4))
    outputs = run(engine, [request_of(seed, schema) for seed, schema in schemas.items()])
    seen = Counter(progress.seen)
    for seed, schema in schemas.items():
        seen.update(outcomes(outputs, seed, schema))
    stats = engine.stats()
    seen.update(preemptions=stats.num_preemptions, drafted=stats.num_draft_tokens, accepted=stats.num_accepted_tokens)
    progress.seen = dict(seen)
    progress.num_schemas += SCHEMAS_A_ROUND
    progress.seconds += time.monotonic() - started_s


def request_of(seed: int, schema: Schema) -> GenerationRequest:
    """A request under a schema, sampled in one of several ways."""
    ways = {
        "greedy": {"temperature": 0.0},
        "drawn": {"temperature": 1.0},
        "narrow": {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1},
        "two choices": {"temperature": 1.5, "num_choices": 2},
    }
    way = ways[KINDS[seed % len(KINDS)]]
    return tiny_request(str(seed), f"{seed}: ", max_tokens=MAX_TOKENS, seed=seed, structure=of_schema(schema), **way)


def outcomes(outputs: list[GenerationOutput], seed: int, schema: Schema) -> list[str]:
    """How the choices of a request ended; raises where one that ended is not valid."""
    validator = jsonschema.Draft202012Validator(schema)
    found = []
    for choice in sorted({output.choice for output in outputs if output.request_id == str(seed)}):
        end = last(outputs, str(seed), choice)
        found.append(str(end.finish_reason))
        if end.finish_reason == "stop":
            validator.validate(json.loads(text(outputs, str(seed), choice)))
            found.append(f"valid, {KINDS[seed % len(KINDS)]}")
        elif end.finish_reason != "length":
            raise AssertionError(f"schema {seed} ended as {end.finish_reason}: {end.error}")
    return found


def report(progress: Progress) -> None:
    """Write down what was proved, where and on what."""
    outcome = {
        "proof": "every answer under a generated schema that ends is valid",
        "schemas": progress.num_schemas,
        "seconds": round(progress.seconds, 1),
        "seen": progress.seen,
    }
    record(NAME, outcome, llguidance=version("llguidance"))


if __name__ == "__main__":
    main()
