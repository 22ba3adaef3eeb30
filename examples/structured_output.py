"""Facts out of free texts, one JSON line each: whatever the model writes, it fits the schema.

    python examples/structured_output.py
    python examples/structured_output.py --model model.gguf "Marie Curie was born in Warsaw in 1867."

A small model may get a fact wrong; it cannot get the form wrong. Texts that are bounded (`maxLength`) always come to
their end within `max_tokens`.
"""

from __future__ import annotations

import argparse
import json

from pelton import LLM, SamplingParams, Structure

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "city": {"type": "string", "maxLength": 40},
        "year": {"type": "integer", "minimum": 1000, "maximum": 2100},
    },
    "required": ["name", "city", "year"],
    "additionalProperties": False,
}
TEXTS = [
    "Marie Curie was born in Warsaw in 1867 and moved to Paris to study physics.",
    "The composer Johann Sebastian Bach, born 1685 in Eisenach, worked in Leipzig for 27 years.",
]


def main() -> None:
    """Print the facts of every text."""
    parser = argparse.ArgumentParser(description="Facts out of texts as JSON.")
    parser.add_argument("texts", nargs="*", default=TEXTS)
    parser.add_argument("--model", default=None, help="a model as `pelton run -m` takes it")
    arguments = parser.parse_args()
    params = SamplingParams(temperature=0, max_tokens=200, structure=Structure("json_schema", SCHEMA))
    with LLM(arguments.model) as llm:
        for text in arguments.texts:
            question = f"Who is it, and in which city and year was this person born? Answer as JSON.\n\n{text}"
            answer = llm.chat([{"role": "user", "content": question}], params)
            person = json.loads(answer.text)
            print(json.dumps(person, ensure_ascii=False))


if __name__ == "__main__":
    main()
