"""One tree of errors; each class says what state is left behind it.

Errors of Google ADK (`StaleSessionError`, `AlreadyExistsError`, `SessionNotFoundError`) pass
through untouched. Messages carry ids and keys, never values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


class MemoryExtError(Exception):
    """Root of every error that this package raises itself."""


class ConfigurationError(MemoryExtError, ValueError):
    """The set-up is wrong: a URL, an option, a missing driver, a plugin without its service.

    Raised before anything is opened or written. Retrying does not help; the message says what to
    change.
    """


class CapabilityError(MemoryExtError, NotImplementedError):
    """The wrapped session service cannot do what was asked, and its name is in the message.

    Nothing was written.
    """


class StoreError(MemoryExtError):
    """A database did not do what it should."""


class StoreUnavailableError(StoreError):
    """The database could not be reached, is locked or is full.

    Nothing was written; retrying is safe.
    """


class SchemaVersionError(StoreError):
    """The database holds tables of a layout that this version does not write.

    Nothing was touched; the message names the command or the service to use.
    """


class CommitUnknownError(StoreError):
    """The connection broke during COMMIT, or a disk did not confirm it: all is written, or nothing.

    Load the session and look; an event can be appended again under the same id without harm.
    """


class CorruptRecordError(StoreError):
    """A stored record cannot be read; the message names it. Nothing was written."""


class InvalidIdError(MemoryExtError, ValueError):
    """An app name, user id, session id or event id is empty, too long or no text.

    Nothing was written.
    """


class StateRejectedError(MemoryExtError, ValueError):
    """A value cannot be kept; nothing of its event was written.

    Args:
        key: The key, or the path of the value inside it or inside the event.
        reason: What is wrong with it; never the value.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key!r} {reason}; nothing was written.")
        self.key = key
        self.reason = reason
        prefix = key.partition(":")[0]
        self.scope = prefix if prefix in ("app", "user", "temp") else "session"

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Lets it travel between processes."""
        return type(self), (self.key, self.reason)


class TurnError(MemoryExtError):
    """A turn could not run as it was asked to; nothing of the refused append was written."""


class TurnBusyError(TurnError):
    """Another turn of the session is running. Nothing was written; sending again later is safe."""


class TurnNestedError(TurnError):
    """A tool or an agent ran its own session again, which would wait for itself.

    Nothing was written.
    """


class TurnHeldTooLongError(TurnError):
    """The turn appended nothing for longer than its hold limit, and others may have gone on.

    What it appended before stays in the log; the refused append was not written.
    """


class CheckpointError(MemoryExtError):
    """A checkpoint could not be used; nothing was written."""


class CheckpointNotFoundError(CheckpointError, LookupError):
    """There is no such checkpoint, or it belongs to somebody else. Nothing was written."""


class CheckpointInconsistentError(CheckpointError):
    """The log is not the one that the checkpoint was made of. Nothing was written.

    `latest(…, consistent=True)` finds the newest checkpoint before the fault.

    Args:
        message: What is wrong.
        event_id: The event that is missing, changed or too many; None if it cannot be told.
    """

    def __init__(self, message: str, event_id: str | None = None) -> None:
        super().__init__(message)
        self.event_id = event_id

    def __reduce__(self) -> tuple[type[Self], tuple[str, str | None]]:
        """Lets it travel between processes."""
        return type(self), (str(self), self.event_id)


class RestoreHookError(MemoryExtError):
    """A function that reads live facts after a restore failed; its name is in the message.

    The model was not called. The message of the user is stored, and the next turn tries again.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"The hook {name!r} failed after a restore; the turn was stopped.")
        self.name = name

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        """Lets it travel between processes."""
        return type(self), (self.name,)


class ErasureIncompleteError(MemoryExtError):
    """Everything that can be erased is gone, and something is left or could not be verified.

    The erasure stays pending where trying again may help: the next start of the service and
    `sessions.erasure.resume()` do so.

    Args:
        receipt: The `Receipt`: what was done, and what was not and why.
    """

    def __init__(self, receipt: Any) -> None:
        super().__init__("The erasure is not complete: " + "; ".join(receipt.not_checked))
        self.receipt = receipt

    def __reduce__(self) -> tuple[type[Self], tuple[Any]]:
        """Lets it travel between processes."""
        return type(self), (self.receipt,)


class EventNotFoundError(MemoryExtError, LookupError):
    """The session has no such event or invocation. Nothing was deleted."""


class FactRejectedError(MemoryExtError, ValueError):
    """A profile fact cannot be kept; nothing of it was written.

    Args:
        key: The fact's key.
        reason: What is wrong with it; never the value.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"The fact {key!r} {reason}; nothing was written.")
        self.key = key
        self.reason = reason

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Lets it travel between processes."""
        return type(self), (self.key, self.reason)


class RevisionConflictError(StoreError):
    """Somebody else changed a fact since it was read; nothing was written.

    Args:
        key: The fact's key.
        expected: The revision that the writer had seen; 0 for no fact.
        actual: The revision that is stored; 0 for no fact.
    """

    def __init__(self, key: str, expected: int, actual: int) -> None:
        super().__init__(
            f"The fact {key!r} has revision {actual} and not {expected}; recall it and save again."
            " Nothing was written."
        )
        self.key = key
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[type[Self], tuple[str, int, int]]:
        """Lets it travel between processes."""
        return type(self), (self.key, self.expected, self.actual)


class BudgetExceededError(MemoryExtError):
    """What a request has to hold is larger than its budget. The model was not called.

    What was appended before, the newest message among it, stays in the log.

    Args:
        parts: Tokens of each part that cannot be left out.
        budget_tokens: What they had to fit into.
    """

    def __init__(self, parts: Mapping[str, int], budget_tokens: int) -> None:
        listed = ", ".join(f"{name} {tokens:,}" for name, tokens in parts.items())
        super().__init__(
            f"The request needs {sum(parts.values()):,} tokens and its budget is"
            f" {budget_tokens:,}: {listed}."
        )
        self.parts = dict(parts)
        self.budget_tokens = budget_tokens

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, int], int]]:
        """Lets it travel between processes."""
        return type(self), (self.parts, self.budget_tokens)


def unwrap(error: BaseException) -> MemoryExtError | None:
    """Returns the error of this package that an error came from; None if it came from none.

    ADK hands on what a plugin raises as the cause of a `RuntimeError`, and a task group puts it
    into a group: this looks through causes, contexts and groups, nearest first.
    """
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        found = waiting.pop(0)
        if isinstance(found, MemoryExtError):
            return found
        if id(found) in seen:
            continue
        seen.add(id(found))
        inner = found.exceptions if isinstance(found, BaseExceptionGroup) else ()
        behind = (found.__cause__, *inner, found.__context__)
        waiting += [other for other in behind if other is not None]
    return None
