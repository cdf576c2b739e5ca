"""The JSON API of the viewer: history, tree, slices, tables, chunks, comparison, maintenance."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.view.samples import HOSTILE, Client, hostile, stored_temperature, temperature, weather

import icefloe
from icefloe import SpecVersion
from icefloe.ingest.derived_arrays import pyramid_local
from icefloe.model.zarr_document import ChunkLengths, as_lengths
from icefloe.view.server import ViewServer
from icefloe.view.slices import SliceRequest, plan_slice, touched
from icefloe.view.web_app import ENDPOINTS


@pytest.fixture(scope="module")
def repo() -> icefloe.Repository:
    return weather()


@pytest.fixture(scope="module")
def client(repo: icefloe.Repository) -> Iterator[Client]:
    with ViewServer(repo) as server:
        yield Client(server)


@pytest.fixture(scope="module")
def unusual() -> Iterator[Client]:
    with ViewServer(hostile()) as server:
        yield Client(server)


def test_the_openapi_document_has_every_route(client: Client) -> None:
    document = client.get("openapi.json")
    assert {endpoint.path for endpoint in ENDPOINTS} | {"/zarr/{ref}/{key}"} == set(document["paths"])
    for endpoint in ENDPOINTS:
        described = document["paths"][endpoint.path]["get"]
        assert [each["name"] for each in described["parameters"]] == [each.name for each in endpoint.parameters]
        required = [each for each in endpoint.parameters if each.required and each.where == "query"]
        # A required parameter is asked for, with a message that names it.
        if required:
            reply = client.reply(endpoint.path.removeprefix("/api/"))
            assert reply.status == 400 and required[0].name in reply.json()["error"]


@pytest.mark.parametrize("spec_version", [version.value for version in SpecVersion])
def test_every_generation_is_shown(spec_version: str) -> None:
    repo = weather(spec_version)
    with ViewServer(repo) as server:
        client = Client(server)
        facts = client.get("repository")
        assert facts["generation"] == spec_version
        assert {ref["name"] for ref in facts["refs"]} == {"main", "warmer", "qc", "v1"}
        commits = client.get("history")["commits"]
        assert commits[0]["message"] == "merge qc" and commits[0]["author"] == "Ada"
        assert commits[0]["merged_id"] == repo.lookup_branch("qc")
        _, values = client.slice(ref="main", path="/t2m", y=1, x=2, index="3")
        np.testing.assert_allclose(values, temperature()[3], rtol=1e-6)
        assert client.get("compare", from_="main", to="warmer", path="/t2m", y=1, x=2)["chunks"]["changed"] == 1
        assert client.get("sizes", ref="main")["total_arrays"] == 7
        assert client.get("growth", ref="main")["commits"][-1]["message"] == "merge qc"
        assert client.get("chunks", ref="warmer", path="/t2m", y=1, x=2, origins=1)["commits"]
        assert client.get("maintenance")["collection"]["kinds"]


def test_the_history_has_branches_tags_and_merges(client: Client, repo: icefloe.Repository) -> None:
    found = client.get("history")
    ids = [commit["id"] for commit in found["commits"]]
    assert set(ids) == {i.id for b in ("main", "warmer", "qc") for i in repo.ancestry(branch=b)}
    assert {ref["name"] for ref in found["refs"]} == {"main", "warmer", "qc", "v1"}
    columns = {commit["message"]: commit["column"] for commit in found["commits"]}
    assert columns["merge qc"] == 0 and columns["quality flags"] > 0
    assert client.get("history", ref="v1")["commits"][0]["message"] == "coordinates and temperature"
    few = client.get("history", limit=2)
    assert len(few["commits"]) == 2 and few["more"]


def test_a_commit_shows_what_it_changed(client: Client, repo: icefloe.Repository) -> None:
    facts = client.get(f"commits/{repo.lookup_branch('warmer')}")
    assert facts["message"] == "warmer in the first chunk"
    assert facts["changes"]["entries"] == [{"change": "written", "kind": "array", "path": "/t2m", "chunks": 1}]
    first = client.get(f"commits/{list(repo.ancestry(branch='main'))[-1].id}")
    assert first["changes"] is None


def test_a_replaced_array_is_one_change() -> None:
    repo = weather()
    before = repo.lookup_branch("main")
    with repo.transaction("main", message="replace") as store:
        zarr.create_array(store, name="humidity", data=np.arange(3), overwrite=True)
    with ViewServer(repo) as server:
        entries = Client(server).get("diff", from_=before, to="main")["entries"]
    assert [(entry["change"], entry["path"]) for entry in entries] == [("replaced", "/humidity")]


def test_a_branch_can_be_read_at_a_time(client: Client, repo: icefloe.Repository) -> None:
    infos = list(repo.ancestry(branch="main"))
    moment = infos[1].written_at.astimezone(dt.UTC).isoformat()
    assert client.get("revision", ref=f"main@{moment}")["snapshot_id"] == infos[1].id
    reply = client.reply("revision", ref="main@yesterday")
    assert reply.status == 400 and "yesterday" in reply.json()["error"]
    assert client.reply("revision", ref="nowhere").status == 404


def test_the_tree_lists_groups_and_arrays(client: Client) -> None:
    found = client.get("tree", ref="main")
    names = {child["name"]: child["kind"] for child in found["children"]}
    assert names["t2m"] == "array" and names["model"] == "group" and found["total"] == len(names)
    assert [c["path"] for c in client.get("tree", ref="main", path="/model/run")["children"]] == ["/model/run/steps"]
    assert client.get("tree", ref="main", limit=1, offset=1)["children"][0] == found["children"][1]
    assert [n["path"] for n in client.get("search", ref="main", text="STEP")["nodes"]] == ["/model/run/steps"]


def test_a_node_shows_its_metadata_and_sizes(client: Client) -> None:
    facts = client.get("node", ref="main", path="/t2m")
    assert facts["chunk_shape"] == [4, 10, 18] and facts["grid"] == [3, 2, 2]
    assert facts["coordinates"] == ["/time", "/latitude", "/longitude"]
    assert facts["storage"]["chunks"] == 12 and facts["attributes"]["units"] == "K"
    assert client.get("node", ref="main", path="/")["attributes"] == {"title": "weather"}


def test_a_slice_is_decoded_with_coordinates_and_dates(client: Client) -> None:
    header, values = client.slice(ref="main", path="/t2m", y=1, x=2, index="0")
    assert np.isnan(values[9, 18]) and header["statistics"]["missing"] == 1
    np.testing.assert_allclose(values, temperature()[0], rtol=1e-6)
    latitude, longitude = header["axes"]
    assert latitude["values"][0] == 90.0 and latitude["units"] == "degrees_north" and longitude["length"] == 36
    assert header["others"] == [{"dimension": 0, "index": 0, "label": "2020-01-01"}]
    header, values = client.slice(ref="main", path="/t2m", x=0, index="0,3,5")
    assert [each["label"] for each in header["others"]] == ["60°N", "50°E"]
    assert header["axes"][0]["kind"] == "time" and header["axes"][0]["labels"][1] == "2020-01-01 06:00"
    np.testing.assert_allclose(values, temperature()[:, 3, 5], rtol=1e-6)
    _, turned = client.slice(ref="main", path="/t2m", y=2, x=1, index="3")
    np.testing.assert_allclose(turned, temperature()[3].T, rtol=1e-6)


def test_a_large_slice_is_thinned_out_for_the_screen(client: Client) -> None:
    header, values = client.slice(ref="main", path="/t2m", y=1, x=2, index="5", width=9, height=5)
    assert header["steps"] == [4, 4] and values.shape == (5, 9)
    np.testing.assert_allclose(values, temperature()[5, 1::4, 1::4], rtol=1e-6)
    assert header["starts"] == [1, 1]
    header, values = client.slice(ref="main", path="/t2m", y=1, x=2, index="5", window="10:12,20:30")
    np.testing.assert_allclose(values, temperature()[5, 10:12, 20:30], rtol=1e-6)
    assert header["chunks_read"] == 1


def test_a_table_shows_values_of_any_type(client: Client, unusual: Client) -> None:
    found = client.get("table", ref="main", path="/t2m", y=1, x=2, window="9:10,17:20")
    assert found["rows"][0][1] is None and found["rows"][0][0] == f"{temperature()[0, 9, 17]:.7g}"
    assert unusual.get("table", path="/texts")["rows"] == [HOSTILE, "plain"]
    assert unusual.get("table", path="/pairs")["rows"] == ["(1, 2.5)", "(3, 4.5)"]
    assert unusual.get("table", path="/scalar")["rows"] == "7.5"
    assert unusual.get("table", path="/large")["rows"] == [str(2**63 - 1), str(-(2**63)), "0"]
    assert unusual.get("table", path="/days")["rows"] == ["2020-01-01", None]
    assert unusual.reply("table", path="/deep", x=11, index="0,0,0,9").status == 400


def test_unusual_arrays_are_shown_or_refused_with_a_reason(unusual: Client) -> None:
    header, values = unusual.slice(path="/wild", y=0, x=1)
    assert values[0, 1] == np.inf and header["statistics"]["max"] == 1e300 and header["statistics"]["missing"] == 1
    assert unusual.slice(path="/empty", y=0, x=1)[1].shape == (0, 5)
    assert unusual.slice(path="/missing", y=0, x=1)[0]["statistics"]["min"] is None
    assert unusual.slice(path="/scalar")[1] == 7.5
    assert unusual.slice(path="/deep", y=0, x=11, index="1,1")[1].shape == (2, 2)
    np.testing.assert_allclose(unusual.slice(path="/waves")[1], [5**0.5, 5.0])
    assert unusual.slice(path="/odd")[1].tolist() == [0, 1, 2, 3]
    for path in ("/texts", "/pairs"):
        reply = unusual.reply("slice", path=path)
        assert reply.status == 400 and "table" in reply.json()["error"]
    for node in unusual.get("tree", ref="main")["children"]:
        assert unusual.reply("node", path=node["path"]).status == 200
        if node["kind"] == "array":
            assert unusual.reply("chunks", path=node["path"], x=0, y=1).status in (200, 400)
            assert unusual.reply("compare", from_="main", to="main", path=node["path"]).status == 200


@pytest.mark.parametrize(
    "params",
    [
        {"path": "/t2m", "y": 1, "x": 1},
        {"path": "/t2m", "y": 9},
        {"path": "/t2m", "x": "two"},
        {"path": "/t2m", "index": "99"},
        {"path": "/t2m", "index": "-1"},
        {"path": "/t2m", "y": 1, "x": 2, "window": "0:5"},
        {"path": "/t2m", "x": 2, "window": "5:0"},
        {"path": "/t2m", "width": 10**9},
        {"path": "/model"},
        {"path": "/t2m/../../etc/passwd"},
    ],
)
def test_wrong_parameters_are_refused(client: Client, params: dict[str, object]) -> None:
    reply = client.reply("slice", ref="main", **params)
    assert reply.status in (400, 404) and reply.json()["error"]


def test_the_chunk_map_tells_kind_object_and_origin() -> None:
    repo = weather()
    with ViewServer(repo) as server:
        client = Client(server)
        found = client.get("chunks", ref="warmer", path="/t2m", y=1, x=2, index="0", origins=1)
        cells = found["cells"]
        assert list(zip(cells["row"], cells["column"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        messages = [found["commits"][k]["message"] for k in cells["commit"]]
        assert messages == ["warmer in the first chunk"] + ["coordinates and temperature"] * 3
        assert {found["kinds"][k] for k in cells["kind"]} <= {"inline", "native", "packed"}
        later = client.get("chunks", ref="warmer", path="/t2m", y=1, x=2, index="1", origins=1)
        assert {later["commits"][k]["message"] for k in later["cells"]["commit"]} == {"coordinates and temperature"}


def test_a_comparison_finds_the_changed_chunks(client: Client) -> None:
    found = client.get("compare", from_="v1", to="warmer", path="/t2m", y=1, x=2, index="0")
    assert found["chunks"] == {"changed": 1, "from": 12, "to": 12, "row": [0], "column": [0]}
    assert client.get("compare", from_="v1", to="warmer", path="/t2m", y=1, x=2, index="2")["chunks"]["row"] == []
    assert client.get("compare", from_="v1", to="main", path="/flags")["from"] is None


def test_sizes_and_growth_count_shared_chunks_once(client: Client) -> None:
    sizes = client.get("sizes", ref="main")
    assert sizes["bytes"] == sum(each["bytes"] for each in sizes["arrays"])
    commits = client.get("growth", ref="main")["commits"]
    assert [each["message"] for each in commits][:2] == ["Repository initialized", "coordinates and temperature"]
    assert commits[-1]["bytes"] == sizes["bytes"]
    assert sum(each["added_bytes"] for each in commits) <= commits[-1]["bytes"]


def test_plans_of_maintenance_write_nothing() -> None:
    storage = icefloe.in_memory_storage()
    repo = weather(storage=storage)
    repo.create_branch("doomed", repo.lookup_branch("main"))
    with repo.transaction("doomed", message="to be forgotten") as store:
        zarr.open_group(store).create_array("x", data=np.random.default_rng(0).random(20_000))
    repo.delete_branch("doomed")
    observed = repo.observed()
    with ViewServer(observed) as server:
        found = Client(server).get("maintenance", grace_days=0, keep_days=0)
    assert found["collection"]["bytes"] > 100_000 and found["expiry"]["expired"] > 0
    written = {name for name, measured in observed.metrics.storage.items() if measured.requests}
    assert not written & {"put", "create", "copy", "delete"} and "list" in " ".join(written)


def test_answers_about_a_snapshot_can_be_kept(client: Client, repo: icefloe.Repository) -> None:
    snapshot = repo.lookup_branch("main")
    assert "max-age" in client.reply("tree", ref=snapshot).headers["cache-control"]
    assert client.reply("tree", ref="main").headers["cache-control"] == "no-store"


# -- what is read -------------------------------------------------------------------------------------------------


def test_only_the_chunks_with_a_wanted_value_are_read() -> None:
    storage = icefloe.in_memory_storage()
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    plain = icefloe.Repository.create(storage, config)
    with plain.transaction("main", message="large") as store:
        array = zarr.create_array(
            store, name="a", shape=(8, 64, 64), chunks=(4, 8, 8), dtype="f4", compressors=None, filters=None
        )
        array[:] = np.arange(8 * 64 * 64, dtype="f4").reshape(8, 64, 64)
    repo = plain.observed()
    with ViewServer(repo) as server:
        client = Client(server)
        client.get("node", path="/a")

        def ranges(**params: object) -> tuple[int, int]:
            before = repo.metrics
            header, _ = client.slice(path="/a", **params)
            return (repo.metrics - before).chunk_ranges, header["chunks_read"]

        assert ranges(y=1, x=2, index="0") == (64, 64)
        # The next steps of the slider are in the same chunks, which are in memory.
        assert ranges(y=1, x=2, index="3")[0] == 0
        assert ranges(y=1, x=2, index="4") == (64, 64)
        assert ranges(y=1, x=2, index="4", window="0:8,0:16") == (2, 2)
        # Four values per axis need sixteen chunks, not all of them.
        assert ranges(y=1, x=2, index="4", width=4, height=4) == (16, 16)
        assert ranges(x=0, index="0,9,9") == (2, 2)


def _with_overviews() -> icefloe.Repository:
    """An array of 4 × 512 × 500 cells with overviews of four levels."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    plain = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    with plain.transaction("main", message="large") as store:
        names = ["time", "y", "x"]
        array = zarr.create_array(
            store, name="a", shape=(4, 512, 500), chunks=(1, 16, 20), dtype="f8", dimension_names=names
        )
        array[:] = np.random.default_rng(1).normal(size=array.shape)
        zarr.create_array(store, name="x", data=np.arange(500) * 0.5, dimension_names=["x"])
    pyramid_local(plain, "a", 4)
    return plain


@pytest.mark.long
def test_a_map_is_read_from_the_overview_that_fits_the_screen() -> None:
    plain = _with_overviews()
    stored = np.asarray(zarr.open_array(plain.readonly_session("main").store, path="a", mode="r")[2])
    repo = plain.observed()
    with ViewServer(repo) as server:
        client = Client(server)
        client.slice(path="/a", y=1, x=2, index="2", window="0:1,0:1", overviews=1)

        def ranges(**params: object) -> tuple[int, dict[str, Any], Any]:
            before = repo.metrics
            header, values = client.slice(path="/a", y=1, x=2, index="2", **params)
            read = (repo.metrics - before).chunk_ranges
            return read, header, values

        # A pixel is eight cells. The third level has 4 × 4 chunks, and the array 32 × 25. Both have a coordinate.
        read, header, values = ranges(width=60, height=64, overviews=1)
        assert header["overview"] == {"level": 3, "path": "/a_levels/3/a", "method": "mean"}
        assert read <= 16 + 2 and header["chunks_read"] == 16 and header["steps"] == [8, 8]
        assert values.shape == (64, 63) and header["starts"] == [3, 3]
        assert np.allclose(values[5, 7], stored[40:48, 56:64].mean())
        assert header["axes"][1]["values"][:2] == [1.5, 5.5]
        # Scripts and comparisons get the values of the array.
        assert ranges(width=60, height=64)[1]["overview"] is None
        # A part of the map: the cells of the level whose centre is in the window.
        _, header, values = ranges(width=20, height=20, window="37:119,100:200", overviews=1)
        assert header["overview"]["level"] == 2 and header["starts"] == [37, 101] and values.shape == (21, 25)
        assert np.allclose(values[0, 0], stored[36:40, 100:104].mean())
        # Cells as large as pixels, another plane and a line are read from the array.
        assert ranges(width=500, height=512, overviews=1)[1]["overview"] is None
        assert client.slice(path="/a", y=0, x=2, index="0,7,0", width=50, overviews=1)[0]["overview"] is None
        assert client.slice(path="/a", x=2, index="0,7,0", width=50, overviews=1)[0]["overview"] is None


@pytest.mark.long
@pytest.mark.parametrize("change", ["values", "longer", "attributes", "hostile"])
def test_an_overview_of_an_array_that_changed_is_not_used(change: str) -> None:
    repo = _with_overviews()
    kept = repo.lookup_branch("main")
    with repo.transaction("main", message="change") as store:
        array = zarr.open_array(store, path="a", mode="r+")
        if change == "values":
            array[0, 0, 0] = 5.0
        elif change == "longer":
            array.resize((5, 512, 500))
        elif change == "attributes":
            zarr.open_group(store, path="/", mode="r+").attrs["title"] = "another"
        else:
            group = zarr.open_group(store, path="a_levels", mode="r+")
            group.attrs["icefloe_pyramid"] = {**group.attrs["icefloe_pyramid"], "levels": 10**9, "axes": ["y", 3]}
    with ViewServer(repo) as server:
        client = Client(server)
        asked = {"path": "/a", "y": 1, "x": 2, "index": "0", "width": 60, "height": 60, "overviews": 1}
        used = client.slice(**asked)[0]["overview"]
        assert (used is not None) == (change == "attributes")
        assert client.slice(ref=kept, **asked)[0]["overview"] is not None
        pyramid_local(repo, "a", 4)
        assert client.slice(**asked)[0]["overview"] is not None


def test_a_plan_stays_within_its_budget() -> None:
    shape, chunks = (100, 40_000, 40_000), as_lengths((1, 1000, 1000))
    request = SliceRequest((1, 2), (5, 0, 0), ((0, 40_000), (0, 40_000)), (800, 1200))
    plan = plan_slice(shape, chunks, 4, request)
    assert plan.is_reduced and plan.decoded_bytes <= 128 << 20 and plan.wanted_steps == (50, 34)
    near = SliceRequest((1, 2), (5, 0, 0), ((2000, 4000), (2000, 4000)), (800, 1200))
    assert plan_slice(shape, chunks, 4, near).chunks == 4
    with pytest.raises(icefloe.InvalidInputError, match="one chunk"):
        plan_slice(
            (2**20, 2**20), as_lengths((2**20, 2**20)), 4, SliceRequest((0, 1), (0, 0), ((0, 9), (0, 9)), (9, 9))
        )


def test_the_number_of_touched_chunks_is_exact() -> None:
    rng = np.random.default_rng(7)
    for _ in range(500):
        length, chunk, step = (int(each) for each in rng.integers(1, 60, 3))
        first, end = sorted(int(each) for each in rng.integers(0, length + 1, 2))
        for chunks in (ChunkLengths(chunk), ChunkLengths(tuple(rng.integers(1, chunk + 1, 9).tolist()))):
            assert touched(first, end, step, chunks) == len({chunks.index(i) for i in range(first, end, step)})


@pytest.mark.skipif("rectilinear_chunks" not in zarr.config.get("array"), reason="this zarr has regular grids only")
def test_an_array_with_chunks_of_different_lengths_is_shown() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    values = np.arange(90.0 * 4).reshape(90, 4)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        with repo.transaction("main", message="months") as store:
            array = zarr.create_array(store, name="t", shape=values.shape, chunks=[[31, 28, 31], [4]], dtype="f8")
            array[:] = values
        with ViewServer(repo) as server:
            client = Client(server)
            facts = client.get("node", path="/t")
            assert facts["chunk_bounds"] == [[0, 31, 59, 90], [0, 4]] and facts["grid"] == [3, 1]
            for index in (0, 30, 31, 58, 59, 89):
                header, found = client.slice(path="/t", x=1, index=f"{index},0", width=4)
                assert np.array_equal(found, values[index]) and header["chunks_read"] == 1


def test_values_of_the_sample_are_what_they_claim() -> None:
    assert stored_temperature()[0, 9, 18] == -32768 and np.isnan(temperature()[0, 9, 18])


@pytest.mark.long
def test_virtual_chunks_need_an_authorisation(tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(np.arange(4, dtype="f4").tobytes())
    prefix = f"file://{tmp_path}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    )
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, config)
    repo.save_config()
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="v", shape=4, chunks=4, dtype="f4", compressors=None, filters=None)
    session.store.set_virtual_ref("v/c/0", f"{prefix}file.bin", offset=0, length=16)
    session.commit("by reference")
    with ViewServer(repo) as server:
        client = Client(server)
        for reply in (client.reply("slice", path="/v"), client.request("/zarr/main/v/c/0")):
            assert reply.status == 403 and "--authorize" in reply.json()["error"]
        found = client.get("chunks", path="/v", x=0)
        assert [found["kinds"][k] for k in found["cells"]["kind"]] == ["virtual"]
    allowed = icefloe.Repository.open(storage, authorize_virtual_chunk_access={prefix: None})
    with ViewServer(allowed) as server:
        assert Client(server).slice(path="/v")[1].tolist() == [0, 1, 2, 3]
