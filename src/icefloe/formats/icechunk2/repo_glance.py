"""What opening a repository needs of its `repo` file, at a cost that does not grow with its history."""

from __future__ import annotations

from icefloe.errors import UnknownFormatError
from icefloe.formats.flat.body import Body
from icefloe.formats.flat.files import open_body
from icefloe.formats.flat.table import Table, item_table, root
from icefloe.formats.header import FileType
from icefloe.formats.icechunk2.repo_info import (
    BRANCHES,
    CONFIG,
    SNAPSHOTS,
    SPEC,
    STATUS,
    TAGS,
    Availability,
    RepoStatus,
)
from icefloe.ids import ObjectId, encode_base32

KNOWN_SPEC = 2


class RepoGlance:
    """A repo file of which only the parts that are asked for are read."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._root = root(body)
        check_spec(body, self._root.scalar(SPEC, "u1"))

    @property
    def config(self) -> bytes | None:
        """The stored configuration, not decoded."""
        return self._root.blob(CONFIG)

    @property
    def status(self) -> RepoStatus:
        """Whether the repository takes writes."""
        table = self._root.child(STATUS)
        code = table.scalar(0, "u1")
        if code not in list(Availability):
            raise self._body.corrupt("it has an unknown status")
        return RepoStatus(Availability(code), table.scalar(1, "<u8"), table.text(2, required=False))

    def find_branch(self, name: str) -> ObjectId | None:
        """Where a branch stands; None when it is not found so, which the whole file has to confirm."""
        return self._find_ref(BRANCHES, name)

    def find_tag(self, name: str) -> ObjectId | None:
        """Where a tag points; None as for branches."""
        return self._find_ref(TAGS, name)

    def _find_ref(self, slot: int, name: str) -> ObjectId | None:
        wanted = name.encode(errors="surrogatepass")
        start, high = self._root.vector(slot, 4, 4)
        low = 0
        while low < high:
            middle = (low + high) // 2
            ref = item_table(self._body, start, middle)
            found = ref.blob(0)
            if found is None:
                raise self._body.corrupt("a ref has no name")
            if found == wanted:
                return self._snapshot_id(ref)
            if found < wanted:
                low = middle + 1
            else:
                high = middle
        return None

    def _snapshot_id(self, ref: Table) -> ObjectId:
        row = ref.scalar(1, "<u4")
        start, count = self._root.vector(SNAPSHOTS, 4, 4)
        if row >= count:
            raise self._body.corrupt("a ref names a snapshot that is not listed")
        return encode_base32(item_table(self._body, start, row).struct(0, 12))


def glance_at_repo(data: bytes) -> RepoGlance:
    """A repo file; UnknownFormatError when it is newer than this library."""
    return RepoGlance(open_body(data, FileType.REPO_INFO)[1])


def check_spec(body: Body, spec: int) -> None:
    """Refuse what is newer than this library."""
    if spec > KNOWN_SPEC:
        raise UnknownFormatError(
            f"the repository has spec version {spec}; this library reads up to {KNOWN_SPEC}: upgrade icefloe",
            spec_version=spec,
        )
    if spec == 0:
        raise body.corrupt("it has no spec version")
