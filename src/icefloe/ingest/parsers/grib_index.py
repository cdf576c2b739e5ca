"""GRIB files by their index files: `.idx` of wgrib2 (NOAA) and `.index` (ECMWF), without reading the data.

An index lists the messages of a GRIB file: position, parameter, level, step, member and time. One message of each kind
is read for the grid and the names that ecCodes gives. A kind is everything that the index says, except for the time,
the step, the ensemble member, and whole-numbered pressure and model levels. ecCodes' names can depend on all else:
the temperature at 2 m is `2t`, at 80 m it is `t`.

An index must describe its file. The messages that are read must be where the index says, with the time, step, level and
member that it says. The last message must end where the file ends. Other messages are checked when they are decoded:
the codec refuses a message of another parameter or grid.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import eccodes

from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.grib_codec import count_fields
from icefloe.ingest.parsers.grib import EPOCH, GribSource, Message
from icefloe.ingest.source_model import SourceFile, SourceSchema

_SUFFIXES = ("", ".grib2", ".grib", ".grb2", ".grb", ".grib1")
"""What may follow the name of an index without its own suffix."""
_HEAD_BYTES = 4096
"""How much of a message is read for its keys. Nearly all headers are shorter."""
_UNITS = {"min": 1 / 60, "hour": 1.0, "day": 24.0}
_FORECAST = re.compile(r"(?:(\d+)-)?(\d+) (min|hour|day) (.*)")
_LEVEL = re.compile(r"(\d+) (mb|hybrid level)")
_MEMBER = re.compile(r"ENS=\+(\d+)")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of an index. None is what it does not say. The message of its kind then says it."""

    line: int
    kind: Hashable
    offset: int
    length: int
    part: int | None
    time: float
    start: float | None = None
    step: float | None = None
    level: float | None = None
    member: int | None = None
    name: str | None = None


class GribIndexSource(GribSource):
    """The fields of a GRIB file, from its index file. Only one message of each kind is read."""

    format = "grib-index"

    def _open(self) -> None:
        self.data = self._find_data()

    def schema(self) -> SourceSchema:
        """The schema of the GRIB file."""
        return replace(super().schema(), referenced=(self.data.url.rsplit("/", 1)[0] + "/",))

    def close(self) -> None:
        """Nothing is open."""

    def _content(self, offset: int, start: int, size: int) -> bytes:
        return self.access.read_ranges(self.data.url, [offset + start], [offset + start + size])[0]

    def _find_data(self) -> SourceFile:
        """The GRIB file beside the index."""
        stem = re.sub(r"\.(idx|index)$", "", self.file.url)
        tried = [stem + suffix for suffix in _SUFFIXES if stem + suffix != self.file.url]
        for url in tried:
            try:
                return self.access.describe(url)
            except ObjectNotFoundError:
                continue
        raise ObjectNotFoundError(
            f"{self.file.url} is an index of a GRIB file, but there is no such file. Tried: {', '.join(tried)}",
            url=self.file.url,
        )

    def _scan(self) -> Iterator[Message]:
        text = self.access.read(self.file.url).decode("utf-8", "replace")
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if not lines:
            raise self._contradiction("it has no lines")
        is_json = lines[0][1].lstrip().startswith("{")
        entries = self._parse_json(lines) if is_json else self._parse_inventory(lines)
        self._check_extent(entries)
        yield from self._describe_entries(entries)

    # Lines

    def _parse_inventory(self, lines: Sequence[tuple[int, str]]) -> list[_Entry]:
        """Entries of wgrib2: `number:offset:d=date:parameter:level:forecast:more`."""
        rows = [(number, line, line.rstrip(":\r").split(":")) for number, line in lines]
        try:
            offsets = [int(fields[1]) for _, _, fields in rows]
            entries = []
            distinct = sorted(set(offsets))
            ends = dict(zip(distinct, [*distinct[1:], self.data.size_bytes], strict=True))
            for (number, _, fields), offset in zip(rows, offsets, strict=True):
                part = fields[0].partition(".")[2]
                entries.append(_inventory_entry(number, fields, offset, ends[offset] - offset, part))
        except (ValueError, IndexError) as error:
            shown = next((line for number, line, fields in rows if len(fields) < 6), rows[0][1])
            raise self._broken_line(shown, error) from error
        if offsets != sorted(offsets):
            raise self._contradiction("its offsets do not ascend")
        # Several lines of one message have numbers such as 7.1 and 7.2.
        for first, second in itertools.pairwise(entries):
            if first.offset == second.offset and (first.part is None or second.part is None):
                raise self._contradiction(f"lines {first.line} and {second.line} have the same offset")
        return entries

    def _parse_json(self, lines: Sequence[tuple[int, str]]) -> list[_Entry]:
        entries = []
        for number, line in lines:
            try:
                entries.append(_json_entry(number, json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise self._broken_line(line, error) from error
        ordered = sorted(entries, key=lambda entry: entry.offset)
        for first, second in itertools.pairwise(ordered):
            if first.offset + first.length > second.offset:
                raise self._contradiction(f"the messages of lines {first.line} and {second.line} overlap")
        return entries

    def _check_extent(self, entries: Sequence[_Entry]) -> None:
        """The last message of the index is the last one of the file."""
        size = self.data.size_bytes
        last = max(entries, key=lambda entry: entry.offset)
        if min(entry.offset for entry in entries) < 0 or min(entry.length for entry in entries) < 8:
            raise self._contradiction("it has a message of less than 8 bytes")
        if last.offset + last.length > size:
            raise self._contradiction(f"its messages end at byte {last.offset + last.length}, the file at byte {size}")
        head = self._content(last.offset, 0, 16)
        if not head.startswith(b"GRIB") or self._content(last.offset, last.length - 4, 4) != b"7777":
            raise self._contradiction(f"there is no message at byte {last.offset}")
        end = last.offset + (_total_length(head) or last.length)
        if end != size:
            raise self._contradiction(f"its last message ends at byte {end}, the file at byte {size}")

    # Messages

    def _describe_entries(self, entries: Sequence[_Entry]) -> Iterator[Message]:
        """The keys of all messages, from one message of each kind."""
        first: dict[Hashable, _Entry] = {}
        for entry in entries:
            first.setdefault(entry.kind, entry)
        known = dict(zip(first, self._read_messages(list(first.values())), strict=True))
        # The start of a period depends on its end in a way that an index without starts does not tell.
        again: dict[Hashable, _Entry] = {}
        for entry in entries:
            model = known[entry.kind]
            if entry.start is None and entry.step is not None and model.start != model.step:
                again.setdefault((entry.kind, entry.step), entry)
        periods = dict(zip(again, self._read_messages(list(again.values())), strict=True)) if again else {}
        for index, entry in enumerate(entries):
            model = periods.get((entry.kind, entry.step), known[entry.kind])
            yield _message(index, entry, model)

    def _read_messages(self, entries: Sequence[_Entry]) -> list[Message]:
        starts = [entry.offset for entry in entries]
        ends = [entry.offset + min(entry.length, _HEAD_BYTES) for entry in entries]
        heads = self.access.read_ranges(self.data.url, starts, ends)
        return [self._read_message(entry, head) for entry, head in zip(entries, heads, strict=True)]

    def _read_message(self, entry: _Entry, head: bytes) -> Message:
        if not head.startswith(b"GRIB"):
            raise self._contradiction(f"there is no message at byte {entry.offset} (line {entry.line})")
        total = _total_length(head)
        if total is not None and total != entry.length:
            raise self._contradiction(
                f"the message at byte {entry.offset} (line {entry.line}) has {total} bytes, not {entry.length}"
            )
        short = None if entry.part is not None else without_data(head)
        if short is None:
            fields = count_fields(partial(self._content, entry.offset), entry.length)
            if fields > 1 and entry.part is None:
                raise self._contradiction(f"the message of line {entry.line} has {fields} fields")
            with self._open_message(entry.offset, entry.length, entry.part) as handle:
                found = self._describe(handle, entry.line - 1, entry.offset, entry.length, entry.part)
        else:
            handle = eccodes.codes_new_from_message(short)
            try:
                found = self._describe(handle, entry.line - 1, entry.offset, entry.length, entry.part)
            finally:
                eccodes.codes_release(handle)
        self._check_entry(entry, found)
        return found

    def _check_entry(self, entry: _Entry, found: Message) -> None:
        """What the index says of a message must be what the message says."""
        for what, said, there in (
            ("time", entry.time, found.time),
            ("start of the step", entry.start, found.start),
            ("step", entry.step, found.step),
            ("level", entry.level, found.level[0]),
            ("ensemble member", entry.member, found.member),
        ):
            if said is not None and (there is None or abs(said - there) > 1e-6):
                raise self._contradiction(f"the {what} of line {entry.line} is {said}, but that of the message {there}")
        if entry.name is not None and entry.name != found.name and not found.name.startswith("unknown"):
            raise self._contradiction(
                f"the parameter of line {entry.line} is {entry.name}, but that of the message {found.name}"
            )

    def _contradiction(self, reason: str) -> FormatError:
        return FormatError(
            f"{self.file.url} is not the index of {self.data.url}: {reason}. Make the index again, or ingest the GRIB "
            "file itself",
            url=self.file.url,
            format="GRIB index",
            reason=reason,
        )

    def _broken_line(self, line: str, error: Exception) -> FormatError:
        return FormatError(
            f"{self.file.url} has a line that is not one of a GRIB index: {line[:200]!r} ({error})",
            url=self.file.url,
            format="GRIB index",
            reason=str(error),
        )


def _inventory_entry(number: int, fields: Sequence[str], offset: int, length: int, part: str) -> _Entry:
    date, name, level, forecast = fields[2:6]
    more = tuple(fields[6:])
    start = step = height = member = None
    if forecast == "anl":
        start = step = 0.0
        kind: tuple[Hashable, ...] = ("anl",)
    elif found := _FORECAST.fullmatch(forecast):
        unit = _UNITS[found[3]]
        step = float(found[2]) * unit
        start = step if found[1] is None else float(found[1]) * unit
        kind = (found[4], found[1] is None, round(step - start, 6), found[3])
    else:
        kind = (forecast,)
    if found := _LEVEL.fullmatch(level):
        height, level = float(found[1]), found[2]
    for each in more:
        if found := _MEMBER.fullmatch(each):
            member = int(found[1])
            more = tuple(_MEMBER.sub("ENS", text) for text in more)
    return _Entry(
        number,
        (name, level, more, *kind),
        offset,
        length,
        int(part) - 1 if part else None,
        _parse_date(date),
        start,
        step,
        height,
        member,
    )


def _parse_date(text: str) -> float:
    """Hours since 1970 of `d=YYYYMMDDHH` or `D=YYYYMMDDHHmmss`."""
    digits = text[2:]
    if text[:2] not in ("d=", "D=") or not digits.isdigit() or len(digits) not in (10, 12, 14):
        raise ValueError(f"{text!r} is not a date")
    when = dt.datetime.strptime(digits.ljust(14, "0"), "%Y%m%d%H%M%S").replace(tzinfo=dt.UTC)
    return (when - EPOCH).total_seconds() / 3600


_VARYING = ("date", "time", "step", "number", "_offset", "_length")


def _json_entry(number: int, keys: dict[str, Any]) -> _Entry:
    clock = int(keys.get("time", 0))
    when = dt.datetime.strptime(f"{keys['date']}{clock:04d}", "%Y%m%d%H%M").replace(tzinfo=dt.UTC)
    kind = {key: value for key, value in keys.items() if key not in _VARYING}
    start = step = level = None
    text = str(keys.get("step", ""))
    if text.isdigit():
        step = float(text)
    elif found := re.fullmatch(r"(\d+)-(\d+)", text):
        start, step = float(found[1]), float(found[2])
        kind["length"] = step - start
    else:
        kind["step"] = text
    if kind.get("levtype") in ("pl", "ml") and str(kind.get("levelist", "")).isdigit():
        level = float(kind.pop("levelist"))
    member = str(keys.get("number", ""))
    return _Entry(
        number,
        json.dumps(kind, sort_keys=True),
        int(keys["_offset"]),
        int(keys["_length"]),
        None,
        (when - EPOCH).total_seconds() / 3600,
        start,
        step,
        level,
        int(member) if member.isdigit() else None,
        str(keys["param"]) if "param" in keys else None,
    )


def _message(index: int, entry: _Entry, model: Message) -> Message:
    """The message of an entry: what the index says of it, and what the message of its kind says."""
    step = model.step if entry.step is None else entry.step
    is_instant = model.start == model.step
    start = entry.start if entry.start is not None else step if is_instant else model.start
    return replace(
        model,
        index=index,
        offset=entry.offset,
        length=entry.length,
        part=entry.part,
        time=entry.time,
        start=start,
        step=step,
        level=model.level if entry.level is None else (entry.level, entry.level),
        member=model.member if entry.member is None else entry.member,
    )


def _total_length(head: bytes) -> int | None:
    """The length of a message by its header. None for long messages of edition 1, which encode it differently."""
    if head[7:8] == b"\x02":
        return int.from_bytes(head[8:16], "big")
    length = int.from_bytes(head[4:7], "big")
    return length if length < 0x800000 else None


def without_data(head: bytes) -> bytes | None:
    """A GRIB 2 message with the same keys and without data, from the first bytes of a message.

    The packing is replaced by that of a constant field, which has no data. None if the first bytes do not contain all
    sections with keys, or for spectral fields and edition 1.
    """
    if head[7:8] != b"\x02":
        return None
    start, kept, points = 16, [], None
    while start + 5 <= len(head):
        size, number = int.from_bytes(head[start : start + 4], "big"), head[start + 4]
        if number >= 5 or size < 5:
            break
        if start + size > len(head):
            return None
        section = head[start : start + size]
        if number == 3:
            points = section[6:10]
            if 50 <= int.from_bytes(section[12:14], "big") < 60:
                return None
        kept.append(section)
        start += size
    is_complete = bool(kept) and kept[-1][4] == 4 and start + 5 <= len(head) and head[start + 4] == 5
    if not is_complete or points is None:
        return None
    constant = (21).to_bytes(4, "big") + b"\x05" + points + bytes(12)
    body = b"".join(kept) + constant + b"\x00\x00\x00\x06\x06\xff" + b"\x00\x00\x00\x05\x07" + b"7777"
    return head[:8] + (16 + len(body)).to_bytes(8, "big") + body
