"""Facts out of a text as JSON that always fits a schema, against a running `pelton serve`.

    python examples/extract_json.py "Marie Curie was born in Warsaw in 1867."

PELTON_URL and PELTON_KEY say where the server is (default http://127.0.0.1:8000/v1, no key).
"""

from __future__ import annotations

import json
import os
import sys

from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "city": {"type": "string", "maxLength": 40},
        "year": {"type": "integer", "minimum": 0, "maximum": 2100},
    },
    "required": ["name", "city", "year"],
    "additionalProperties": False,
}

text = " ".join(sys.argv[1:]) or "Marie Curie was born in Warsaw in 1867."
client = OpenAI(
    base_url=os.environ.get("PELTON_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ.get("PELTON_KEY", "none")
)
completion = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": f"Name, city of birth and year of birth, as JSON: {text}"}],
    response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}},
    temperature=0,
    max_tokens=200,
)
person = json.loads(completion.choices[0].message.content)
print(json.dumps(person, indent=2))
