"""The hot SQL statements over profiles; `statements` compiles them with the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, insert, select, update

from adk_memory_ext.parameters import given, is_given
from adk_memory_ext.schema import memext_profile_facts, memext_profile_users

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table
    from sqlalchemy.sql import ClauseElement


def fact_clauses(*, lock: bool) -> dict[str, ClauseElement]:
    """Returns the statements by name; `lock` where a SELECT has to lock its rows."""
    users, facts = memext_profile_users, memext_profile_facts
    user = select(users.c.incarnation, users.c.revision, users.c.written_microseconds).where(
        _own(users)
    )
    current = and_(_own(facts), facts.c.retired_revision == given("retired_revision"))
    one = and_(current, is_given(facts, "subject", "fact_key"))
    in_order = (facts.c.subject, facts.c.fact_key, facts.c.revision)
    progress = {
        "revision": given("revision"),
        "written_microseconds": given("written_microseconds"),
    }
    return {
        "profile_user": user,
        "locked_profile_user": user.with_for_update() if lock else user,
        "insert_profile_user": insert(users).values(
            app_name=given("app_name"),
            user_id=given("user_id"),
            incarnation=given("incarnation"),
            **progress,
        ),
        "save_profile_user": update(users).where(_own(users)).values(progress),
        "delete_profile_user": delete(users).where(_own(users)),
        "current_facts": select(facts).where(current).order_by(*in_order),
        "all_facts": select(facts).where(_own(facts)).order_by(*in_order),
        "insert_fact": insert(facts).values(
            {column.name: given(column.name) for column in facts.c}
        ),
        "retire_fact": update(facts)
        .where(one)
        .values(
            retired_revision=given("new_retired_revision"),
            retired_microseconds=given("retired_microseconds"),
        ),
        "save_claims": update(facts).where(one).values(claims=given("claims")),
        "delete_fact": delete(facts).where(one),
        "delete_facts": delete(facts).where(_own(facts)),
    }


def _own(table: Table) -> ColumnElement[bool]:
    """The condition that a row belongs to the profile of the parameters."""
    return is_given(table, "app_name", "user_id")
