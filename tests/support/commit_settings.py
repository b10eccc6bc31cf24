"""Triggers that set something, and one that sees what of it holds as a commit begins.

What is deferred runs before the commit, and what sets the session back follows it. So the one that sees
defers itself once more, then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from support.database import Connection

# Of a trigger that runs at the end of its transaction.
DEFERRED: Final = "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
_SEEING = """
    CREATE TABLE IF NOT EXISTS public.seen (step text, durability text, messages text);
    CREATE OR REPLACE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
        SET CONSTRAINTS ALL DEFERRED;
        INSERT INTO public.seen VALUES (coalesce(to_jsonb(NEW)->>'status', TG_TABLE_NAME));
        RETURN NULL;
    END$$;
    CREATE OR REPLACE FUNCTION public.see_commit() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
        UPDATE public.seen SET durability = current_setting('synchronous_commit'),
                               messages = current_setting('client_min_messages')
        WHERE durability IS NULL;
        RETURN NULL;
    END$$;
    DROP TRIGGER IF EXISTS see_commit ON public.seen;
    CREATE CONSTRAINT TRIGGER see_commit AFTER INSERT ON public.seen
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.see_commit();
    -- By its name behind all others of its table.
    CREATE CONSTRAINT TRIGGER z_see AFTER {events} ON {table}
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.see()
"""


async def have_set(connection: Connection, when: str, statement: str) -> None:
    """Have a trigger send a statement; `when` says of what rows, and may defer it."""
    kind = "CONSTRAINT TRIGGER" if "DEFERRED" in when else "TRIGGER"
    await connection.execute(
        f"""CREATE FUNCTION public.change_session() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN {statement}; RETURN NEW; END$$;
            CREATE {kind} change_session {when} EXECUTE FUNCTION public.change_session()"""
    )


async def see_commits(connection: Connection, table: str, events: str = "INSERT") -> None:
    """Have each commit seen that has written to a table so."""
    await connection.execute(_SEEING.format(table=table, events=events))


async def seen_at_commits(connection: Connection, step: str = "chat_group") -> list[str]:
    """Return what each commit has waited for: those that wrote to the table, or attempts of the status."""
    rows = await connection.fetch("SELECT durability FROM public.seen WHERE step = $1", step)
    return [row["durability"] for row in rows]


async def messages_at_commits(connection: Connection) -> set[str]:
    """Return which messages the server would have sent at each commit, from the least on."""
    return {row["messages"] for row in await connection.fetch("SELECT messages FROM public.seen")}
