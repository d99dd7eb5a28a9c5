"""The invented person, job and messages of the sample, in Traditional Chinese and in English."""

from importlib.resources import files

LANGUAGES = ("zh-TW", "en")

_FILES = (("1-question", "1-resume", "1-job-ad"), ("2-answer",), ("3-change",))


def messages(language: str) -> list[str]:
    """Returns the person's three messages, as they would paste or type them into a chat.

    The first one holds the question, the résumé and the job advertisement, under headings.

    Args:
      language: One of `LANGUAGES`.
    """
    folder = files(__package__) / "inputs" / language
    return [
        "\n".join((folder / f"{name}.txt").read_text(encoding="utf-8") for name in names).strip()
        for names in _FILES
    ]
