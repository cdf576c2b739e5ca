"""The configuration of a repository as plain data, as it is stored, and back."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from icefloe.errors import InvalidInputError
from icefloe.model.config import RepositoryConfig
from icefloe.model.config_value import ConfigValue, Nested, refused, settings_of
from icefloe.model.manifest_config import ManifestConfig
from icefloe.model.manifest_config_document import KEY as _SETS
from icefloe.model.manifest_config_document import manifest_config_document, parse_manifest_config
from icefloe.model.object_store_config import ObjectStoreConfig
from icefloe.model.virtual_chunk_container import VirtualChunkContainer

C = TypeVar("C", bound=ConfigValue)

_CONTAINERS = "virtual_chunk_containers"
_MANIFEST = "manifest"
_MANIFEST_KEYS = frozenset({
    "preload", "splitting", "virtual_chunk_location_compression", "max_concurrent_manifest_fetches_during_commit",
})  # fmt: skip
_CONTAINER_KEYS = frozenset({"name", "url_prefix", "store"})


def decode_config(document: Mapping[str, Any] | None) -> RepositoryConfig:
    """The configuration of a stored document; keys nobody here knows are kept in `unknown`.

    Variants are accepted as `{"s3": {...}}` and as `{"!s3": {...}}`.
    """
    if document is None:
        return RepositoryConfig()
    given = dict(_mapping("the configuration", _untagged(document)))
    containers = given.pop(_CONTAINERS, None)
    manifest = {key: given.pop(key) for key in (_MANIFEST, _SETS) if key in given}
    unknown: dict[str, Any] = {}
    config = _decode(RepositoryConfig, given, "", unknown)
    if containers is not None:
        config.virtual_chunk_containers = _decode_containers(containers, unknown)
    if any(value is not None for value in manifest.values()):
        config.manifest = _decode_manifest(manifest, unknown)
    config.unknown = unknown
    return config


def encode_config(config: RepositoryConfig) -> dict[str, Any]:
    """The document of a configuration: what is set, and the unknown keys it came with."""
    document = _encode(config)
    if config.virtual_chunk_containers is not None:
        document[_CONTAINERS] = {
            key: {"name": c.name, "url_prefix": c.url_prefix, "store": c.store.to_dict()}
            for key, c in config.virtual_chunk_containers.items()
        }
    if config.manifest is not None:
        document |= _encode_manifest(config.manifest)
    unknown = dict(config.unknown)
    held = config.virtual_chunk_containers or {}
    # What was unknown about a container goes with it.
    unknown[_CONTAINERS] = {key: rest for key, rest in unknown.get(_CONTAINERS, {}).items() if key in held}
    return _restore(document, unknown)


def _decode(cls: type[C], given: Mapping[str, Any], path: str, unknown: dict[str, Any]) -> C:
    """A configuration value, its settings checked one by one so that an error names the key."""
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
            document[key] = found.name.lower() if isinstance(found, enum.Enum) else found
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
        if not isinstance(store, str | Mapping):
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
    # Sets, rules and preload that nobody changed are the default of whoever reads them.
    if document.get(_SETS) == manifest_config_document(ManifestConfig()).get(_SETS):
        document.pop(_SETS, None)
    document.setdefault(_MANIFEST, {})
    encoded: dict[str, Any] = _with_tagged_bounds(document)
    return encoded


def _with_plain_bounds(value: Any) -> Any:
    """The same data with the bounds of `num_refs` as plain numbers: the first one meant, the first one not."""
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
    """The inverse: bounds in the form that the official library reads."""
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
    """The document with the unknown keys back in their places; what is known wins."""
    restored = dict(document)
    for key, value in unknown.items():
        held = restored.get(key)
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            restored[key] = _restore(held, value)
        elif key not in restored and value != {}:
            restored[key] = value
    return restored


def _mapping(where: str, found: Any) -> Mapping[str, Any]:
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise refused(where, found, "a map of settings")
    return found


def _untagged(value: Any) -> Any:
    """The same data with `{"!tag": ...}` written as `{"tag": ...}`."""
    if isinstance(value, Mapping):
        return {k.removeprefix("!") if isinstance(k, str) else k: _untagged(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_untagged(item) for item in value]
    return value
