"""The configuration of a repository in YAML, with variants as tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from icefloe.errors import InvalidInputError
from icefloe.formats.config_document import decode_config, encode_config
from icefloe.model.config import RepositoryConfig

_MOST_BYTES = 4 << 20
_MOST_VALUES = 200_000
_NESTING, _MOST_NESTING = (b"[", b"{", b"-", b"?", b":"), 1000
"""Every nested level of YAML needs one of these characters."""
_VARIANTS = frozenset(
    {
        "s3",
        "s3_compatible",
        "gcs",
        "azure",
        "tigris",
        "local_file_system",
        "http",
        "in_memory",
        "or",
        "and",
        "path_matches",
        "name_matches",
        "num_refs",
        "Included",
        "Excluded",
        "Axis",
        "DimensionName",
    }
)
_TAGGED_FIELDS = frozenset({"store", "preload_if", "condition", "split_sizes", "or", "and", "num_refs"})
"""Fields whose values, or list items, are variants. Variants are written with a tag."""


def decode_yaml(text: str | bytes) -> dict[str, Any]:
    """A document from YAML. `!tag value` becomes `{"!tag": value}`. Raises InvalidInputError if it is not a map."""
    if len(text) > _MOST_BYTES:
        raise InvalidInputError(f"the configuration has {len(text)} bytes, expected at most {_MOST_BYTES}")
    try:
        # The loaders below only create plain data. Tags stay data too.
        value = yaml.load(text, Loader=_choose_loader(text))
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise InvalidInputError(f"the configuration is not YAML: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInputError(f"the configuration is a {type(value).__name__}, expected a map of settings")
    _count(value, [_MOST_VALUES], 0)
    return value


def encode_yaml(document: Mapping[str, Any]) -> str:
    """YAML of a document, variants as tags."""
    return yaml.dump(
        _tagged(document, variants=False), Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True
    )


def config_from_yaml(text: str | bytes) -> RepositoryConfig:
    """Return the configuration from a YAML text. Settings that are not in the text have their defaults.

    Parameters
    ----------
    text
        The YAML text.

    Returns
    -------
    RepositoryConfig
        The configuration.

    Raises
    ------
    InvalidInputError
        The text is not YAML, or contains an unknown setting or a wrong value.

    Examples
    --------
    >>> config = config_from_yaml('''
    ...     inline_chunk_threshold_bytes: 1024
    ...     chunk-manifests:
    ...       sets:
    ...         - coordinates: {max-manifest-size: 10000}
    ...       rules:
    ...         - path: .*/(latitude|longitude|time)
    ...           target: coordinates
    ... ''')
    >>> config.inline_chunk_threshold_bytes, [entry.name for entry in config.manifest.sets]
    (1024, ['coordinates', 'default'])
    """
    return decode_config(decode_yaml(text))


def config_to_yaml(config: RepositoryConfig) -> str:
    """Return a configuration as YAML text.

    Parameters
    ----------
    config
        The configuration.

    Returns
    -------
    str
        The YAML text. It contains only settings that are set.

    Examples
    --------
    >>> import icefloe
    >>> print(icefloe.config_to_yaml(icefloe.RepositoryConfig(inline_chunk_threshold_bytes=1024)))
    inline_chunk_threshold_bytes: 1024
    """
    return encode_yaml(encode_config(config))


class _Tagged:
    """A value to be written with a tag."""

    def __init__(self, tag: str, value: Any) -> None:
        self.tag = tag
        self.value = value


class _Loader(yaml.SafeLoader):
    """A loader for plain data. Tags become maps with one key."""


class _NativeLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same loader on libyaml, if PyYAML was built with it."""


def _choose_loader(text: str | bytes) -> type[yaml.SafeLoader]:
    """libyaml is ten times as fast, but it recurses on the C stack.

    It is only used for text that cannot be deeply nested.
    """
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    return _NativeLoader if sum(map(raw.count, _NESTING)) <= _MOST_NESTING else _Loader


class _Dumper(yaml.SafeDumper):
    """A dumper for plain data and tags, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def choose_scalar_style(self) -> Any:
        # Tagged numbers must not be quoted, or they are read as text.
        event = self.event
        if isinstance(event, yaml.ScalarEvent) and str(event.tag).startswith("!") and event.value.isdigit():
            return ""
        return super().choose_scalar_style()


def _construct_tag(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.MappingNode):
        value: Any = loader.construct_mapping(node, deep=True)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.ScalarNode)
        # A tag suppresses the detection of the scalar's type. Resolve it as if there were no tag.
        plain = not node.style  # None from one loader, empty from the other
        implicit = loader.resolve(yaml.ScalarNode, node.value, (plain, not plain))  # type: ignore[no-untyped-call]
        value = loader.construct_object(yaml.ScalarNode(implicit, node.value, style=node.style), deep=True)
    return {f"!{suffix}": value}


def _represent_tag(dumper: _Dumper, tagged: _Tagged) -> yaml.Node:
    node = dumper.represent_data(tagged.value)
    node.tag = f"!{tagged.tag}"
    return node


_Loader.add_multi_constructor("!", _construct_tag)
_NativeLoader.add_multi_constructor("!", _construct_tag)
_Dumper.add_representer(_Tagged, _represent_tag)


def _tagged(value: Any, *, variants: bool) -> Any:
    if isinstance(value, Mapping):
        if variants and len(value) == 1:
            ((key, content),) = value.items()
            if key.removeprefix("!") in _VARIANTS:
                tag = key.removeprefix("!")
                return _Tagged(tag, _tagged(content, variants=tag in _TAGGED_FIELDS))
        return {
            key: _tagged(item, variants=key in _TAGGED_FIELDS or (variants and key in ("from", "to")))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_tagged(item, variants=variants) for item in value]
    return value


def _count(value: Any, budget: list[int], depth: int) -> None:
    """Refuse documents that aliases expand to an unreasonable size."""
    budget[0] -= 1
    if budget[0] < 0 or depth > 100:
        raise InvalidInputError(f"the configuration contains more than {_MOST_VALUES} values, or is nested too deeply")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _count(item, budget, depth + 1)
