"""How far the estimate of tokens is off, by kind of text, against a stated tokenizer.

    python -m benchmarks.token_estimates           prints the table of the how-to
    python -m benchmarks.token_estimates --count   counts the samples anew with the tokenizer

The reference is Tekken, the tokenizer of Mistral's models (131,072 pieces, digits one by one), as
`mistral-common` ships it: large, multilingual, and there without a network. Gemini's own is neither
in a package nor offline; a model's own `count_tokens` is what `ModelTokenCounter` asks.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adk_memory_ext.history.tokens import text_tokens
from benchmarks.wording import table

SAMPLES: Final = Path(__file__).with_name("token_samples.json")
"""{kind of text: {text, tokens by the reference}}."""
REFERENCE: Final = "tekken_240911.json"


@dataclass(frozen=True)
class Sample:
    """A text of some kind."""

    kind: str
    text: str
    tokens: int
    """As the reference counts."""

    @property
    def estimate(self) -> int:
        """As we estimate."""
        return text_tokens(self.text)

    @property
    def error(self) -> float:
        """By what part of the reference the estimate is too high, or, below 0, too low."""
        return self.estimate / self.tokens - 1


def samples() -> list[Sample]:
    """Returns the samples with their recorded counts."""
    recorded = json.loads(SAMPLES.read_text(encoding="utf-8"))
    return [Sample(kind, one["text"], one["tokens"]) for kind, one in recorded.items()]


def count(text: str) -> int:
    """Returns the tokens of a text as the reference counts them.

    Raises:
        ImportError: When `mistral-common` is not installed.
    """
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    folder = Path(mistral_common.__file__).parent / "data"
    return len(Tekkenizer.from_file(folder / REFERENCE).encode(text, bos=False, eos=False))


def report() -> str:
    """Returns the table of the how-to."""
    return table(
        ["text", "characters", "reference", "estimate", "error"],
        [
            [
                sample.kind,
                str(len(sample.text)),
                str(sample.tokens),
                str(sample.estimate),
                f"{sample.error:+.0%}",
            ]
            for sample in samples()
        ],
    )


def main(arguments: list[str]) -> None:
    """Prints the table; counts anew first where that is asked for."""
    if "--count" in arguments:
        counted = {
            sample.kind: {"text": sample.text, "tokens": count(sample.text)} for sample in samples()
        }
        text = json.dumps(counted, ensure_ascii=False, indent=1)
        SAMPLES.write_text(text + "\n", encoding="utf-8")
    print(report())


if __name__ == "__main__":
    main(sys.argv[1:])
