"""Artifacts as they were at a checkpoint: the versions that it noted, as new versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from google.adk.artifacts.base_artifact_service import BaseArtifactService

    from adk_memory_ext.checkpoint_records import Checkpoint

_OF_USER: Final = "user:"


async def put_back(
    service: BaseArtifactService,
    checkpoint: Checkpoint,
    *,
    of_user: bool,
    fork_id: str | None = None,
) -> dict[str, int | None]:
    """Saves the noted version of each artifact whose newest version is another one.

    Nothing is deleted, and what came later than the checkpoint is left alone.

    Args:
        service: Where the artifacts lie.
        checkpoint: Notes their versions.
        of_user: Whether those that all sessions of the user share are put back too.
        fork_id: The session to save them in; None for that of the checkpoint.

    Returns:
        The new version of each artifact that was saved, None for one whose noted version is gone.
    """
    done: dict[str, int | None] = {}
    for name, version in checkpoint.artifacts.items():
        if name.startswith(_OF_USER) and not of_user:
            continue
        owner: dict[str, Any] = {
            "app_name": checkpoint.app_name,
            "user_id": checkpoint.user_id,
            "session_id": checkpoint.session_id,
            "filename": name,
        }
        noted = await service.load_artifact(**owner, version=version)
        owner["session_id"] = fork_id or checkpoint.session_id
        if noted is None:
            done[name] = None
        elif await service.load_artifact(**owner) != noted:
            done[name] = await service.save_artifact(**owner, artifact=noted)
    return done
