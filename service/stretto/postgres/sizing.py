"""How large a deployment becomes: rows, bytes and WAL, from rates and `schema.sql`.

Pure arithmetic on PostgreSQL's pages; test_sizing.py holds it against what the real writer fills.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

DAY_SECONDS: Final = 86_400

# A page, its header, and what each row of a page takes besides itself.
PAGE_BYTES: Final = 8192
_PAGE_HEADER, _LINE_POINTER = 24, 4
# The header of a row, before the bitmap of its nulls; of an index entry; of an index page's end.
_ROW_HEADER, _ENTRY_HEADER, _INDEX_SPECIAL = 23, 8, 16
_ALIGNMENT: Final = 8
# Random inserts split pages in the middle: they are between half full and full, ln 2 on average
# (Yao 1978). Ids that grow with time are inserted near the end and not quite in order, since the
# writer sorts by group: pages of single ids keep 0.87, those of several entries for each id less, the
# larger the batch is.
_RANDOM_FILL: Final = math.log(2)
_GROWING_FILL, _MIXED_FILL = 0.87, 0.78
# Of a batch as large as a page, the share of settled attempts whose new version finds no room on its
# page (docs/performance.md): it takes a place on another one, and a second entry in the index. Of
# smaller ones, the share of dead pending versions that are still on a page when it takes no more
# inserts: measured at 1, 2 and 8 at once, where it is 0.2, 0.3 and 0.45.
_NOT_HOT, _DEAD_SHARE_MAX = 0.14, 0.55

# Of a page of deliveries, left to new versions of its rows (fillfactor). Each try makes some, with an
# entry each in every index: the pages of the unique one have split once for them, the others hold the
# old one beside the new. Those by owner hold more: a row that becomes due behind others is marked.
_DELIVERY_KEPT_FREE: Final = PAGE_BYTES * 3 // 10
_TRIED_FILL, _TRIED_ENTRIES, _OWNED_ENTRIES, _MARKED_ENTRIES = 0.66, 2, 3, 1.5

# Free space map, visibility map, and the empty index of the TOAST table: of a table in use, and of an
# empty partition. An index's first page.
_TABLE_BYTES_MIN, _PART_BYTES_MIN, _INDEX_BYTES_MIN = 5 * PAGE_BYTES, PAGE_BYTES, PAGE_BYTES

# Sizes and alignments of columns.
_UUID, _TIME, _BIG, _INTEGER, _SMALL = (16, 1), (8, 8), (8, 8), (4, 4), (2, 2)
_FINGERPRINT: Final = (17, 1)

# WAL of a row and of an index entry besides the bytes themselves: record, block reference, what the
# record says of the row. Each in PostgreSQL's access/*_xlog.h.
_WAL_RECORD, _WAL_BLOCK = 24, 20
_WAL_ROW: Final = _WAL_RECORD + _WAL_BLOCK + 5 + 5 - _ROW_HEADER
_WAL_ENTRY: Final = _WAL_RECORD + _WAL_BLOCK + 4
# The update that settles an attempt: its new version without what it shares with the old one.
_WAL_SETTLE: Final = 136
# The lock of a conversation that a foreign key takes, by its group's insert.
_WAL_KEY_LOCK: Final = 56
# A split logs the half that moves to the new page. A batch ends two transactions.
_SPLIT_SHARE: Final = 0.5
_WAL_TRANSACTIONS: Final = 100
# A page that is changed first after a checkpoint is logged whole, without its free space.
_WAL_IMAGE: Final = 52

# What a process of the service, a process of the server for one connection, and a live session with
# its connection have taken (docs/performance.md, docs/operations.md).
PROCESS_BYTES, BACKEND_BYTES, SESSION_BYTES = 120 * 2**20, 12 * 2**20, 40 * 2**10
# A batch is what comes while the one before it is written.
_WRITE_SECONDS: Final = 0.006


@dataclass(frozen=True, slots=True)
class Demand:
    """What a deployment has to do."""

    rate: float
    """Creations per second."""
    members: int = 5
    """Of a group, with its owner."""
    attempt_days: int = 30
    event_days: int = 7
    after_days: float = 365
    """For how long groups have been created: they are never swept."""
    outage_days: float = 0
    """For how long the webhook's endpoint takes no events: each waits as a delivery."""
    user_bytes: int = 36
    name_bytes: int = 20
    batch_max: int = 128

    @property
    def batch(self) -> float:
        """Creations that are written together."""
        return min(max(self.rate * _WRITE_SECONDS, 1), self.batch_max)

    def kept(self, days: float) -> float:
        """Return how many creations there are of the last so many days."""
        return self.rate * DAY_SECONDS * min(days, self.after_days)


@dataclass(frozen=True, slots=True)
class Index:
    """One index of a table, by the bytes of an entry."""

    entry: float
    fill: float = _GROWING_FILL
    entries: float = 1
    """Per row."""

    @property
    def is_random(self) -> bool:
        """Whether its inserts go to any of its pages."""
        return self.fill == _RANDOM_FILL

    @property
    def per_row(self) -> float:
        """Bytes of its pages per row of the table."""
        usable = 1 - (_PAGE_HEADER + _INDEX_SPECIAL) / PAGE_BYTES
        return (self.entry + _LINE_POINTER) * self.entries / self.fill / usable


@dataclass(frozen=True, slots=True)
class Table:
    """One table, by the bytes of a row on its page."""

    name: str
    rows: float
    per_group: int
    """Rows that a creation inserts."""
    row: int
    on_page: float
    """Bytes of pages per row."""
    indexes: Sequence[Index]
    parts: int = 1

    @property
    def heap_bytes(self) -> float:
        """Without the indexes."""
        fixed = _TABLE_BYTES_MIN + (self.parts - 1) * _PART_BYTES_MIN
        return self.rows * self.on_page + fixed

    @property
    def index_bytes(self) -> float:
        """Of all of its indexes."""
        return sum(
            self.rows * index.per_row + self.parts * _INDEX_BYTES_MIN for index in self.indexes
        )

    @property
    def bytes(self) -> float:
        """As pg_total_relation_size says."""
        return self.heap_bytes + self.index_bytes


def tables(demand: Demand) -> list[Table]:
    """Return the tables that grow with creations; the others stay below a megabyte."""
    groups = demand.kept(demand.after_days)
    user, name = _text(demand.user_bytes), _text(demand.name_bytes)
    pending = _row(_UUID, user, _FINGERPRINT, _UUID, _text(len("pending")), _TIME, nulls=10)
    succeeded = _text(len("succeeded"))
    settled = _row(_UUID, user, _FINGERPRINT, _UUID, succeeded, _UUID, _TIME, _TIME, nulls=10)
    attempt_on_page = _attempt_on_page(pending, settled, demand.batch)
    conversation = _row(_UUID, _text(len("group")), _BIG, _TIME)
    group = _row(_UUID, user, name, _FINGERPRINT, _UUID, _TIME, _INTEGER, nulls=13)
    member = _row(_UUID, user, _text(len("member")), _TIME)
    # An array of texts: its own header, then each with a length of 4 bytes, aligned to 4.
    recipients = 24 + demand.members * _aligned(4 + demand.user_bytes, 4)
    users = (recipients - 3, 1) if recipients <= 126 else (recipients, 4)
    event = _row(
        *(_SMALL, _INTEGER, _BIG, _TIME, _UUID, _UUID, _UUID),
        *(users, name),
        nulls=14,
    )
    reader = _text(len("webhook"))
    delivery = _row(reader, _TIME, *[_UUID] * 3, users, name, _TIME, _INTEGER, user, nulls=16)
    by_id = Index(_entry(_UUID), _RANDOM_FILL)
    in_time = Index(_entry(_UUID))
    return [
        Table(
            *("attempt", demand.kept(demand.attempt_days), 1, settled, attempt_on_page),
            [Index(_entry(_UUID), _RANDOM_FILL, 1 + _NOT_HOT)],
        ),
        Table("chat_group", groups, 1, group, _on_page(group), [by_id, in_time]),
        Table("conversation", groups, 1, conversation, _on_page(conversation), [in_time]),
        Table(
            *("conversation_member", groups * demand.members, demand.members, member),
            _on_page(member),
            [Index(_entry(_UUID, user), _MIXED_FILL), Index(_entry(user, _UUID), _RANDOM_FILL)],
        ),
        Table(
            # One partition more than the retention is divided into is kept: see schema.sql.
            *("outbox", demand.kept(demand.event_days * 8 / 7), 1, event, _on_page(event)),
            [Index(_shared_entry(demand.batch, _INTEGER, _BIG))],
            parts=8,
        ),
        Table(
            # A dead letter is swept after as long as an attempt. No creation writes these rows.
            *("outbox_delivery", demand.kept(min(demand.outage_days, demand.attempt_days)), 0),
            *(delivery, _on_page(delivery, _DELIVERY_KEPT_FREE)),
            [
                Index(_entry(reader, _UUID), _TRIED_FILL),
                *[Index(_entry(reader, _TIME), entries=_TRIED_ENTRIES)] * 2,
                Index(_entry(reader, user, _TIME), entries=_OWNED_ENTRIES),
                Index(_entry(reader, user, _TIME, _UUID), entries=_MARKED_ENTRIES),
                Index(_entry(reader, _TIME, _UUID), entries=_TRIED_ENTRIES),
            ],
        ),
    ]


def wal_bytes(demand: Demand) -> float:
    """Return the WAL of a creation, without whole pages: what a full database logs long after a checkpoint."""
    total = _WAL_SETTLE + _WAL_KEY_LOCK + _WAL_TRANSACTIONS / demand.batch
    for table in tables(demand):
        row = _aligned(_WAL_ROW + table.row)
        entries = sum(
            (_aligned(_WAL_ENTRY + index.entry) + index.per_row * _SPLIT_SHARE) * index.entries
            for index in table.indexes
        )
        total += table.per_group * (row + entries)
    return total


def image_bytes(demand: Demand, checkpoint_seconds: float) -> float:
    """Return the WAL of whole pages per creation, with a checkpoint every so often.

    Only of indexes that are filled at random: the others change few pages, many times each. Of P
    pages, k random changes reach P (1 - exp(-k / P)).
    """
    creations = demand.rate * checkpoint_seconds
    total = 0.0
    for table in tables(demand):
        for index in filter(lambda each: each.is_random, table.indexes):
            pages = max(table.rows * index.per_row / PAGE_BYTES, 1)
            changes = creations * table.per_group * index.entries
            image = PAGE_BYTES * index.fill + _WAL_IMAGE
            total += pages * -math.expm1(-changes / pages) * image
    return total / creations


def random_index_bytes(demand: Demand) -> float:
    """Return the bytes of indexes that are filled at random, which are best kept in memory.

    A creation touches pages anywhere in them, and reads those from the disk that are not in memory.
    """
    return sum(
        table.rows * index.per_row
        for table in tables(demand)
        for index in table.indexes
        if index.is_random
    )


def _text(length: int) -> tuple[int, int]:
    """Return size and alignment of a text: a short one has one byte of header, others four."""
    return (1 + length, 1) if length < 127 else (4 + length, 4)


def _aligned(size: float, alignment: int = _ALIGNMENT) -> int:
    return math.ceil(size / alignment) * alignment


def _laid_out(start: int, columns: Sequence[tuple[int, int]]) -> int:
    for size, alignment in columns:
        start = _aligned(start, alignment) + size
    return start


def _row(*columns: tuple[int, int], nulls: int = 0) -> int:
    """Return the bytes of a row, with a bitmap for so many columns if some may be null."""
    return _aligned(_laid_out(_aligned(_ROW_HEADER + math.ceil(nulls / 8)), columns))


def _entry(*columns: tuple[int, int]) -> int:
    return _aligned(_laid_out(_ENTRY_HEADER, columns))


def _attempt_on_page(pending: int, settled: int, batch: float) -> float:
    """Return the bytes of pages per attempt: half of each is left to new versions (fillfactor)."""
    kept_free = PAGE_BYTES // 2
    whole = _on_page(pending, kept_free)
    if batch >= PAGE_BYTES / whole:
        return whole + _NOT_HOT * _on_page(settled, kept_free)
    dead = _DEAD_SHARE_MAX * batch / (batch + 2) * (pending + _LINE_POINTER)
    return PAGE_BYTES / ((kept_free - _PAGE_HEADER) / (settled + _LINE_POINTER + dead))


def _shared_entry(rows: float, *columns: tuple[int, int]) -> float:
    """Return what is left of an entry for each of so many equal ones: one of them, and their places."""
    entry = _entry(*columns)
    return entry if rows <= 1 else (entry + _LINE_POINTER) / rows + 6 - _LINE_POINTER


def _on_page(row: int, kept_free: int = 0) -> float:
    """Return the bytes of pages per row: a row is on one page.

    One that has no room there is stored in parts (TOAST), which take its whole pages at most.
    """
    rows = (PAGE_BYTES - _PAGE_HEADER - kept_free) // (row + _LINE_POINTER)
    if rows:
        return PAGE_BYTES / rows
    return float(PAGE_BYTES * math.ceil((row + _LINE_POINTER) / (PAGE_BYTES - _PAGE_HEADER)))
