"""The configuration of a repository as a plain document, as JSON holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

from icefloe.errors import InvalidInputError
from icefloe.model.config import RepositoryConfig
from icefloe.model.config_value import ConfigValue, Nested, refused, settings_of
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
    ManifestVirtualChunkLocationCompressionConfig,
    PreloadRules,
    Range,
)
from icefloe.model.virtual_chunk_container import ObjectStoreConfig, VirtualChunkContainer

KEY = "chunk-manifests"

_SET_KEYS = {
    "max-manifest-size": "max_manifest_size",
    "max-size": "max_manifest_size",
    "arrays-per-manifest": "arrays_per_manifest",
    "max-arrays-per-manifest": "arrays_per_manifest",
    "overflow-to": "overflow_to",
    "cardinality": "cardinality",
    "split-size": "split_size",
}
_RULE_KEYS = {"path", "metadata-chunks", "initialized-chunks", "target"}


def parse_manifest_config(document: Mapping[str, Any]) -> ManifestConfig:
    """The configuration under the keys `chunk-manifests` (sets, rules, preload) and `manifest` (splitting, preload)."""
    official = _manifest_mapping(document.get("manifest"), "manifest")
    ours = _manifest_mapping(document.get(KEY), KEY)
    _refuse_unknown(ours, {"sets", "rules", "preload"}, KEY)
    values: dict[str, Any] = {}
    if ours.get("sets") is not None:
        values["sets"] = tuple(_parse_set(s, i) for i, s in enumerate(_sequence(ours["sets"], f"{KEY}.sets")))
    if ours.get("rules") is not None:
        values["rules"] = tuple(_parse_rule(r, i) for i, r in enumerate(_sequence(ours["rules"], f"{KEY}.rules")))
    elif "sets" in values and all(s.name != "coordinates" for s in values["sets"]):
        values["rules"] = ()  # the default rule points at a default set that was replaced
    if ours.get("preload") is not None:
        values["preload_rules"] = _parse_preload(_manifest_mapping(ours["preload"], f"{KEY}.preload"))
    fetches = official.get("max_concurrent_manifest_fetches_during_commit")
    return ManifestConfig(
        preload=_parse_official_preload(official.get("preload")),
        splitting=_parse_splitting(official.get("splitting")),
        virtual_chunk_location_compression=_parse_location_compression(
            official.get("virtual_chunk_location_compression")
        ),
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
        raise InvalidInputError(f"{where}: expected the name of a set as text, found {name!r}")
    where = f"{where} ({name})"
    values: dict[str, Any] = {}
    for key, value in _manifest_mapping(properties, where).items():
        field = _SET_KEYS.get(key)
        if field is None:
            raise InvalidInputError(f"{where}: unknown property {key!r}. Known: {sorted(_SET_KEYS)}")
        if field in values and values[field] != value:
            raise InvalidInputError(f"{where}: {key} is given twice, under two names. Remove one of them")
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
    rule = _manifest_mapping(document, where)
    _refuse_unknown(rule, _RULE_KEYS, where)
    if not isinstance(rule.get("target"), str):
        raise InvalidInputError(f"{where}: target is missing. It is the name of the set for matching arrays")
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
        array = _manifest_mapping(entry, f"{where}.arrays[{index}]")
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
    preload = _manifest_mapping(document, "manifest.preload")
    condition = preload.get("preload_if")
    return ManifestPreloadConfig(
        max_total_refs=_manifest_count(preload.get("max_total_refs"), "manifest.preload.max_total_refs"),
        preload_if=None if condition is None else parse_preload_condition(condition, "manifest.preload.preload_if"),
        max_arrays_to_scan=_manifest_count(preload.get("max_arrays_to_scan"), "manifest.preload.max_arrays_to_scan"),
    )


def _manifest_count(value: Any, where: str) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise InvalidInputError(f"{where}: expected a whole number of at least 0, or null, found {value!r}")
    return value


def _parse_splitting(document: Any) -> ManifestSplittingConfig | None:
    where = "manifest.splitting"
    entries = _manifest_mapping(document, where).get("split_sizes")
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
            part = _manifest_mapping(size, at)
            if not isinstance(part.get("num_chunks"), int):
                raise InvalidInputError(
                    f"{at}: expected a whole number for num_chunks, found {part.get('num_chunks')!r}"
                )
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
        document["splitting"] = splitting_document(config.splitting)
    if config.virtual_chunk_location_compression is not None:
        document["virtual_chunk_location_compression"] = asdict(config.virtual_chunk_location_compression)
    if config.max_concurrent_manifest_fetches_during_commit is not None:
        document["max_concurrent_manifest_fetches_during_commit"] = config.max_concurrent_manifest_fetches_during_commit
    return document


def splitting_document(splitting: ManifestSplittingConfig) -> dict[str, Any]:
    """The splitting setting of the official configuration, as JSON-like data."""
    return {
        "split_sizes": [
            [condition.to_document(), [{"condition": dim_document(d), "num_chunks": n} for d, n in sizes]]
            for condition, sizes in splitting.split_sizes
        ]
    }


def _parse_location_compression(document: Any) -> ManifestVirtualChunkLocationCompressionConfig | None:
    if not isinstance(document, Mapping):
        return None
    names = [each.name for each in fields(ManifestVirtualChunkLocationCompressionConfig)]
    given = {name: document[name] for name in names if isinstance(document.get(name), int)}
    return ManifestVirtualChunkLocationCompressionConfig(**given)


def _number(value: Any) -> Any:
    """Parse `1_000_000`, which is a number in YAML 1.1 and text in YAML 1.2."""
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


def _manifest_mapping(value: Any, where: str) -> Mapping[str, Any]:
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
            raise InvalidInputError(f"{where}: unknown key {key!r}. Known: {sorted(known)}")


C = TypeVar("C", bound=ConfigValue)

_CONTAINERS = "virtual_chunk_containers"
_MANIFEST = "manifest"
_MANIFEST_KEYS = frozenset(
    {
        "preload",
        "splitting",
        "virtual_chunk_location_compression",
        "max_concurrent_manifest_fetches_during_commit",
    }
)
_CONTAINER_KEYS = frozenset({"name", "url_prefix", "store"})


def decode_config(document: Mapping[str, Any] | None) -> RepositoryConfig:
    """The configuration of a stored document. Unknown keys are kept in `unknown`.

    Variants are accepted as `{"s3": {...}}` and as `{"!s3": {...}}`.
    """
    if document is None:
        return RepositoryConfig()
    given = dict(_mapping("the configuration", _untagged(document)))
    containers = given.pop(_CONTAINERS, None)
    manifest = {key: given.pop(key) for key in (_MANIFEST, KEY) if key in given}
    unknown: dict[str, Any] = {}
    config = _decode(RepositoryConfig, given, "", unknown)
    if containers is not None:
        config.virtual_chunk_containers = _decode_containers(containers, unknown)
    if any(value is not None for value in manifest.values()):
        config.manifest = _decode_manifest(manifest, unknown)
    config.unknown = unknown
    return config


def encode_config(config: RepositoryConfig) -> dict[str, Any]:
    """The document of a configuration: the settings that are set, and the unknown keys it was read with."""
    document = _encode(config)
    if config.virtual_chunk_containers is not None:
        document[_CONTAINERS] = {
            key: {"name": c.name, "url_prefix": c.url_prefix, "store": c.store.to_dict()}
            for key, c in config.virtual_chunk_containers.items()
        }
    if config.manifest is not None:
        document |= _encode_manifest(config.manifest)
    unknown = dict(config.unknown)
    containers = config.virtual_chunk_containers or {}
    # Unknown keys of a container are removed with it.
    unknown[_CONTAINERS] = {key: rest for key, rest in unknown.get(_CONTAINERS, {}).items() if key in containers}
    return _restore(document, unknown)


def _decode(cls: type[C], given: Mapping[str, Any], path: str, unknown: dict[str, Any]) -> C:
    """A configuration value. Settings are checked one by one, so that an error contains the key."""
    value = cls()
    settings = settings_of(cls)
    for key, found in given.items():
        where = f"{path}{key}"
        setting = settings.get(key)
        if setting is None:
            unknown[key] = found
        elif found is None:
            continue
        elif isinstance(setting.kind, Nested):
            inner: dict[str, Any] = {}
            setattr(value, key, _decode(setting.kind.cls, _mapping(where, found), f"{where}.", inner))
            if inner:
                unknown[key] = inner
        else:
            setattr(value, key, setting.kind.parse(where, found))
    check = getattr(value, "check", None)
    if check is not None:
        check()
    return value


def _encode(value: ConfigValue) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, setting in settings_of(type(value)).items():
        found = getattr(value, key)
        if found is None or key in (_CONTAINERS, _MANIFEST):
            continue
        if isinstance(setting.kind, Nested):
            document[key] = _encode(found)
        else:
            document[key] = setting.kind.encode(found)
    return document


def _decode_containers(given: Any, unknown: dict[str, Any]) -> dict[str, VirtualChunkContainer]:
    containers: dict[str, VirtualChunkContainer] = {}
    left: dict[str, Any] = {}
    for key, found in _mapping(_CONTAINERS, given).items():
        where = f"{_CONTAINERS}.{key}"
        entry = _mapping(where, found)
        prefix, name, store = entry.get("url_prefix"), entry.get("name"), entry.get("store")
        if not isinstance(prefix, str) or not prefix:
            raise refused(f"{where}.url_prefix", prefix, "the URL that locations start with")
        if name is not None and not isinstance(name, str):
            raise refused(f"{where}.name", name, "a text or null")
        if not isinstance(store, str | dict | Mapping):
            raise refused(f"{where}.store", store, "a store like {'s3': {...}} or {'local_file_system': '/path'}")
        try:
            containers[key] = VirtualChunkContainer(prefix, ObjectStoreConfig.from_dict(store), name)
        except InvalidInputError as error:
            raise InvalidInputError(f"{where}.store: {error.message}", setting=f"{where}.store") from error
        rest = {k: v for k, v in entry.items() if k not in _CONTAINER_KEYS}
        if rest:
            left[key] = rest
    if left:
        unknown[_CONTAINERS] = left
    return containers


def _decode_manifest(given: Mapping[str, Any], unknown: dict[str, Any]) -> ManifestConfig:
    official = given.get(_MANIFEST)
    rest = {k: v for k, v in _mapping(_MANIFEST, official or {}).items() if k not in _MANIFEST_KEYS}
    if rest:
        unknown[_MANIFEST] = rest
    return parse_manifest_config(_with_plain_bounds(given))


def _encode_manifest(config: ManifestConfig) -> dict[str, Any]:
    document = manifest_config_document(config)
    # Sets, rules and preload that were not changed are not stored. Each reader uses its own default.
    if document.get(KEY) == manifest_config_document(ManifestConfig()).get(KEY):
        document.pop(KEY, None)
    document.setdefault(_MANIFEST, {})
    encoded: dict[str, Any] = _with_tagged_bounds(document)
    return encoded


def _with_plain_bounds(value: Any) -> Any:
    """The same data with the bounds of `num_refs` as plain numbers: the first included and the first excluded one."""
    if isinstance(value, Mapping):
        return {k: _plain_bounds(v) if k == "num_refs" else _with_plain_bounds(v) for k, v in value.items()}
    return [_with_plain_bounds(item) for item in value] if isinstance(value, list) else value


def _plain_bounds(bounds: Any) -> Any:
    given = _mapping("manifest.preload.preload_if.num_refs", bounds)
    plain: dict[str, int | None] = {}
    for end, excluded_shift, included_shift in (("from", 1, 0), ("to", 0, 1)):
        found = given.get(end)
        if isinstance(found, Mapping) and len(found) == 1:
            ((word, number),) = found.items()
            if word not in ("Included", "Excluded") or not isinstance(number, int):
                raise refused(f"num_refs.{end}", found, "{'Included': n}, {'Excluded': n} or 'Unbounded'")
            plain[end] = number + (included_shift if word == "Included" else excluded_shift)
        else:
            plain[end] = found if isinstance(found, int) else None
    return plain


def _with_tagged_bounds(value: Any) -> Any:
    """The inverse of `_plain_bounds`: bounds in the form that the official library reads."""
    if isinstance(value, Mapping):
        return {k: _tagged_bounds(v) if k == "num_refs" else _with_tagged_bounds(v) for k, v in value.items()}
    return [_with_tagged_bounds(item) for item in value] if isinstance(value, list) else value


def _tagged_bounds(bounds: Mapping[str, Any]) -> dict[str, Any]:
    low, high = bounds.get("from"), bounds.get("to")
    return {
        "from": "Unbounded" if low is None else {"Included": low},
        "to": "Unbounded" if high is None else {"Excluded": high},
    }


def _restore(document: Mapping[str, Any], unknown: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the unknown keys added again. Known keys win."""
    restored = dict(document)
    for key, value in unknown.items():
        known = restored.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            restored[key] = _restore(known, value)
        elif key not in restored and value != {}:
            restored[key] = value
    return restored


def _mapping(where: str, found: Any) -> Mapping[str, Any]:
    if not isinstance(found, dict | Mapping) or not all(isinstance(key, str) for key in found):
        raise refused(where, found, "a map of settings")
    return found


def _untagged(value: Any) -> Any:
    """The same data with `{"!tag": ...}` written as `{"tag": ...}`."""
    # The types of JSON come first: `Mapping` and `Sequence` take long for a type that they meet for the first time.
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    if isinstance(value, dict | Mapping):
        return {k.removeprefix("!") if isinstance(k, str) else k: _untagged(v) for k, v in value.items()}
    if isinstance(value, list | Sequence):
        return [_untagged(item) for item in value]
    return value
