"""The manifest configuration as plain dictionaries and lists, as YAML and JSON hold it, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icefloe.errors import InvalidInputError
from icefloe.model.manifest_conditions import (
    dim_document,
    parse_dim_condition,
    parse_preload_condition,
    parse_split_condition,
)
from icefloe.model.manifest_config import (
    DEFAULT_SET,
    ManifestConfig,
    ManifestPreloadConfig,
    ManifestRule,
    ManifestSet,
    ManifestSplittingConfig,
    PreloadRules,
    Range,
)

KEY = "chunk-manifests"

_SET_KEYS = {
    "max-manifest-size": "max_manifest_size", "max-size": "max_manifest_size",
    "arrays-per-manifest": "arrays_per_manifest", "max-arrays-per-manifest": "arrays_per_manifest",
    "overflow-to": "overflow_to", "cardinality": "cardinality", "split-size": "split_size",
}  # fmt: skip
_RULE_KEYS = {"path", "metadata-chunks", "initialized-chunks", "target"}


def parse_manifest_config(document: Mapping[str, Any]) -> ManifestConfig:
    """The configuration under the keys `chunk-manifests` (sets, rules, preload) and `manifest` (splitting, preload)."""
    official = _mapping(document.get("manifest"), "manifest")
    ours = _mapping(document.get(KEY), KEY)
    _refuse_unknown(ours, {"sets", "rules", "preload"}, KEY)
    values: dict[str, Any] = {}
    if ours.get("sets") is not None:
        values["sets"] = tuple(_parse_set(s, i) for i, s in enumerate(_sequence(ours["sets"], f"{KEY}.sets")))
    if ours.get("rules") is not None:
        values["rules"] = tuple(_parse_rule(r, i) for i, r in enumerate(_sequence(ours["rules"], f"{KEY}.rules")))
    elif "sets" in values and all(s.name != "coordinates" for s in values["sets"]):
        values["rules"] = ()  # the default rule points at a default set that was replaced
    if ours.get("preload") is not None:
        values["preload_rules"] = _parse_preload(_mapping(ours["preload"], f"{KEY}.preload"))
    fetches = official.get("max_concurrent_manifest_fetches_during_commit")
    return ManifestConfig(
        preload=_parse_official_preload(official.get("preload")),
        splitting=_parse_splitting(official.get("splitting")),
        virtual_chunk_location_compression=official.get("virtual_chunk_location_compression"),
        max_concurrent_manifest_fetches_during_commit=fetches,
        **values,
    )


def manifest_config_document(config: ManifestConfig) -> dict[str, Any]:
    """The inverse of parse_manifest_config."""
    document: dict[str, Any] = {
        KEY: {
            "sets": [{s.name: _set_document(s)} for s in config.sets],
            "rules": [_rule_document(r) for r in config.rules],
            "preload": {
                "max-manifest-size": config.preload_rules.max_manifest_size,
                "max-manifests": config.preload_rules.max_manifests,
                "arrays": [{"path": path} for path in config.preload_rules.paths],
            },
        }
    }
    official = _official_document(config)
    return document | ({"manifest": official} if official else {})


def _parse_set(document: Any, index: int) -> ManifestSet:
    where = f"{KEY}.sets[{index}]"
    if isinstance(document, str):
        document = {document: None}
    if not isinstance(document, Mapping) or len(document) != 1:
        raise InvalidInputError(f"{where}: expected one name with its properties, found {document!r}")
    ((name, properties),) = document.items()
    if not isinstance(name, str):
        raise InvalidInputError(f"{where}: the name of a set is text, found {name!r}")
    where = f"{where} ({name})"
    values: dict[str, Any] = {}
    for key, value in _mapping(properties, where).items():
        field = _SET_KEYS.get(key)
        if field is None:
            raise InvalidInputError(f"{where}: unknown property {key!r}; there are {sorted(_SET_KEYS)}")
        if field in values and values[field] != value:
            raise InvalidInputError(f"{where}: {key} is given twice, under its two names")
        values[field] = _number(value) if field != "overflow_to" else value
    if name == DEFAULT_SET:
        if values.get("max_manifest_size", 0) is None and values.get("arrays_per_manifest") is None:
            del values["max_manifest_size"]
        return ManifestSet.default(**values)
    if values.get("overflow_to", "") is None:
        del values["overflow_to"]
    return ManifestSet(name, **values)


def _set_document(entry: ManifestSet) -> dict[str, Any]:
    document: dict[str, Any] = {
        "max-manifest-size": entry.max_manifest_size,
        "cardinality": entry.cardinality,
        "arrays-per-manifest": entry.arrays_per_manifest,
        "overflow-to": entry.overflow_to,
    }
    usual = ManifestSet.default().split_size if entry.name == DEFAULT_SET else None
    if entry.split_size != usual:
        document["split-size"] = entry.split_size
    return document


def _parse_rule(document: Any, index: int) -> ManifestRule:
    where = f"{KEY}.rules[{index}]"
    rule = _mapping(document, where)
    _refuse_unknown(rule, _RULE_KEYS, where)
    if not isinstance(rule.get("target"), str):
        raise InvalidInputError(f"{where}: target is missing; it names the set that matching arrays go to")
    return ManifestRule(
        target=rule["target"],
        path=rule.get("path"),
        metadata_chunks=_range(rule.get("metadata-chunks"), f"{where}.metadata-chunks"),
        initialized_chunks=_range(rule.get("initialized-chunks"), f"{where}.initialized-chunks"),
    )


def _rule_document(rule: ManifestRule) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if rule.metadata_chunks is not None:
        document["metadata-chunks"] = list(rule.metadata_chunks)
    if rule.initialized_chunks is not None:
        document["initialized-chunks"] = list(rule.initialized_chunks)
    if rule.path is not None:
        document["path"] = rule.path
    return document | {"target": rule.target}


def _parse_preload(document: Mapping[str, Any]) -> PreloadRules:
    where = f"{KEY}.preload"
    _refuse_unknown(document, {"max-manifest-size", "max-manifests", "arrays"}, where)
    paths = []
    for index, entry in enumerate(_sequence(document.get("arrays") or [], f"{where}.arrays")):
        array = _mapping(entry, f"{where}.arrays[{index}]")
        _refuse_unknown(array, {"path"}, f"{where}.arrays[{index}]")
        paths.append(array.get("path"))
    return PreloadRules(
        max_manifest_size=_number(document.get("max-manifest-size")),
        max_manifests=_number(document.get("max-manifests")),
        paths=tuple(paths),  # type: ignore[arg-type]  # validation names the one that is not text
    )


def _parse_official_preload(document: Any) -> ManifestPreloadConfig | None:
    if document is None:
        return None
    preload = _mapping(document, "manifest.preload")
    condition = preload.get("preload_if")
    return ManifestPreloadConfig(
        max_total_refs=_count(preload.get("max_total_refs"), "manifest.preload.max_total_refs"),
        preload_if=None if condition is None else parse_preload_condition(condition, "manifest.preload.preload_if"),
        max_arrays_to_scan=_count(preload.get("max_arrays_to_scan"), "manifest.preload.max_arrays_to_scan"),
    )


def _count(value: Any, where: str) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise InvalidInputError(f"{where}: expected a whole number from 0 on, or null; found {value!r}")
    return value


def _parse_splitting(document: Any) -> ManifestSplittingConfig | None:
    where = "manifest.splitting"
    entries = _mapping(document, where).get("split_sizes")
    if entries is None:
        return None
    rules = []
    for index, entry in enumerate(_sequence(entries, where)):
        at = f"{where}.split_sizes[{index}]"
        pair = _sequence(entry, at)
        if len(pair) != 2:
            raise InvalidInputError(f"{at}: expected [condition, sizes], found {entry!r}")
        sizes = []
        for size in _sequence(pair[1], at):
            part = _mapping(size, at)
            if not isinstance(part.get("num_chunks"), int):
                raise InvalidInputError(f"{at}: num_chunks is a whole number, found {part.get('num_chunks')!r}")
            sizes.append((parse_dim_condition(part.get("condition"), at), int(part["num_chunks"])))
        rules.append((parse_split_condition(pair[0], at), sizes))
    return ManifestSplittingConfig(rules)


def _official_document(config: ManifestConfig) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if config.preload is not None:
        condition = config.preload.preload_if
        document["preload"] = {
            "max_total_refs": config.preload.max_total_refs,
            "preload_if": None if condition is None else condition.to_document(),
            "max_arrays_to_scan": config.preload.max_arrays_to_scan,
        }
    if config.splitting is not None:
        document["splitting"] = {
            "split_sizes": [
                [condition.to_document(), [{"condition": dim_document(d), "num_chunks": n} for d, n in sizes]]
                for condition, sizes in config.splitting.split_sizes
            ]
        }
    for name in ("virtual_chunk_location_compression", "max_concurrent_manifest_fetches_during_commit"):
        if getattr(config, name) is not None:
            document[name] = getattr(config, name)
    return document


def _number(value: Any) -> Any:
    """`1_000_000` is a number for YAML 1.1 and text for YAML 1.2 readers."""
    if isinstance(value, str) and value.isascii() and len(value) < 30 and value.replace("_", "").isdigit():
        return int(value.replace("_", ""))
    return value


def _range(value: Any, where: str) -> Range | None:
    if value is None:
        return None
    ends = _sequence(value, where)
    if len(ends) != 2:
        raise InvalidInputError(f"{where}: expected [from, to], found {value!r}")
    return _number(ends[0]), _number(ends[1])


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{where}: expected a map, found {value!r}")
    return value


def _sequence(value: Any, where: str) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidInputError(f"{where}: expected a list, found {value!r}")
    return value


def _refuse_unknown(document: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in document:
        if key not in known:
            raise InvalidInputError(f"{where}: unknown key {key!r}; there are {sorted(known)}")
