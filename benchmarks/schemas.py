"""JSON schemas of many kinds, each with a prompt, and whether a text is valid by its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import validator_for

FILE = Path(__file__).parent / "data" / "schemas.jsonl"


class Case(NamedTuple):
    """One schema, and a prompt whose answer may have its form."""

    name: str
    prompt: str
    schema: dict[str, Any]

    @property
    def question(self) -> str:
        """The prompt with the schema, as one asks a model for JSON."""
        return f"{self.prompt}\n\nAnswer in JSON that is valid by this schema:\n{json.dumps(self.schema)}"

    def fault(self, text: str) -> str:
        """Why the text is not valid by the schema; empty if it is."""
        kind = validator_for(self.schema, Draft202012Validator)
        try:
            kind(self.schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text))
        except json.JSONDecodeError as error:
            return f"not JSON: {error}"
        except ValidationError as error:
            return error.message
        return ""


def corpus() -> list[Case]:
    """All schemas of the file."""
    return [Case(**json.loads(line)) for line in FILE.read_text(encoding="utf-8").splitlines()]
