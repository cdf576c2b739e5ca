"""Plan SQL queries: find tables, columns and conditions, and replace aggregates that chunks can answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from sqlglot import exp

from icefloe.errors import InvalidInputError, suggest
from icefloe.lazy_exports import lazy_module
from icefloe.tables.grids import session_zone
from icefloe.tables.predicates import (
    And,
    Comparison,
    Membership,
    NullTest,
    Or,
    Predicate,
    Unknown,
    columns_of,
    predicate_of,
)
from icefloe.tables.sql_plan import (
    DROPS_FRACTION,
    Aggregation,
    Condition,
    IcefloeDialect,
    Key,
    Measure,
    QueryPlan,
    Relation,
    canonical,
    conjuncts,
    is_deterministic,
    own_nodes,
    parse_query,
)
from icefloe.tables.views import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from icefloe.tables import evaluate
else:
    # A wrong name is reported before Arrow and Zarr are imported.
    pa = lazy_module("pyarrow")
    evaluate = lazy_module("icefloe.tables.evaluate")


class Tables(Protocol):
    """Where the planner finds tables."""

    @property
    def zone(self) -> str: ...

    def find(self, name: str, *, quoted: bool = False, version: str | None = None, at: str | None = None) -> Table: ...


def plan_query(text: str, tables: Tables, *, rows_only: Sequence[str] = ()) -> QueryPlan:
    """Plan a query.

    Parameters
    ----------
    text
        A SELECT statement.
    tables
        The tables by name.
    rows_only
        Names of relations whose aggregates the engine computes.

    Returns
    -------
    QueryPlan
        The query for an engine, and what it reads.

    Raises
    ------
    InvalidInputError
        The text is not one SELECT statement, or it names a table or a column that does not exist.
    """
    query = parse_query(text)
    return _Planner(query, tables, frozenset(rows_only)).run()


def check_names(text: str, tables: Tables) -> None:
    """Raise an error if a query names a table or a column that does not exist. Nothing else is read."""
    _Planner(parse_query(text), tables, frozenset()).find_names()


_FUNCTIONS_WITHOUT_PARENTHESES = (
    "current_date current_time current_timestamp current_user localtime localtimestamp now rowid today user"
)
_UNITS = "microsecond millisecond second minute hour day week month quarter year decade century millennium"
_NOT_COLUMNS = frozenset((*_FUNCTIONS_WITHOUT_PARENTHESES.split(), *_UNITS.split()))
"""Words that stand for a function or a unit of time where no column has the name."""
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Mod)
_PROMOTED = (*_ARITHMETIC, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_MEASURES: Mapping[type[exp.Expr], str] = {
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.Count: "count",
    exp.Stddev: "stddev_samp",
    exp.StddevSamp: "stddev_samp",
    exp.StddevPop: "stddev_pop",
    exp.Variance: "var_samp",
    exp.VariancePop: "var_pop",
    # Without an order, any value of the group is right.
    exp.AnyValue: "min",
    exp.First: "min",
}
_SUMMABLE = ("int8", "int16", "int32", "float", "double")
"""Types whose sums cannot overflow 64 bits."""


@dataclass(eq=False)
class _Mention:
    """A table node of the query, and what is known of it."""

    node: exp.Table
    name: str
    text: str
    table: Table
    is_plain: bool
    """False for samples, pivots and renamed columns: conditions and columns cannot be moved below them."""
    conditions: dict[str, Condition] = field(default_factory=dict)
    all_columns: bool = False
    aggregation: Aggregation | None = None
    fallback: str | None = None

    @property
    def alias(self) -> str:
        return str(self.node.alias_or_name).lower()


@dataclass(eq=False)
class _Source:
    """An entry of FROM or JOIN."""

    alias: str
    join: exp.Join | None
    mention: _Mention | None = None
    query: exp.Query | None = None
    columns: frozenset[str] | None = None
    """Names in lower case. None if they are not known."""
    is_shared: bool = False
    """Whether the query of the source is used more than once."""
    may_be_null: bool = False
    """Whether an outer join can produce rows in which all columns of the source are null."""


class _Planner:
    def __init__(self, query: exp.Query, tables: Tables, rows_only: frozenset[str]) -> None:
        self._query = query
        self._tables = tables
        self._rows_only = rows_only
        self._mentions: dict[int, _Mention] = {}
        self._sources: dict[int, list[_Source]] = {}
        self._ctes: dict[int, list[exp.Table]] = {}

    def find_names(self) -> None:
        """Find the tables of the query, and check the names of columns."""
        for select in list(self._query.find_all(exp.Select)):
            _name_columns(select)
        self._find_tables()
        self._check_columns()

    def run(self) -> QueryPlan:
        self.find_names()
        self._unify_types()
        selects = list(self._query.find_all(exp.Select))
        for select in selects:
            self._find_stars(select)
            for condition in self._filters(select):
                self._push(select, condition, None)
            self._push_joins(select)
        needed = self._needed_columns()
        for select in selects:
            self._aggregate(select)
        relations = tuple(self._relation(mention, needed[mention.name]) for mention in self._mentions.values())
        return QueryPlan(self._query, relations, self._tables.zone)

    def _relation(self, mention: _Mention, columns: tuple[str, ...]) -> Relation:
        conditions = tuple(mention.conditions.values())
        if mention.aggregation is not None:
            read = {measure.column for measure in mention.aggregation.measures}
            read |= {key.dimension for key in mention.aggregation.keys}
            cells = [each.predicate for each in conditions if each.is_exact and each.dimension is None]
            read |= {name for each in cells for name in (mention.table.find_column(c) for c in columns_of(each))}
            columns = tuple(name for name in mention.table.names if name in read)
        return Relation(
            mention.name, mention.text, mention.table, columns, conditions, mention.aggregation, mention.fallback
        )

    # Tables and names.

    def _find_tables(self) -> None:
        for node in list(self._query.find_all(exp.Table)):
            if not isinstance(node.this, exp.Identifier):
                continue  # a table function
            cte = None if node.args.get("db") else self._find_cte(node)
            if cte is not None:
                self._ctes.setdefault(id(cte), []).append(node)
                continue
            self._mention(node)

    def _find_cte(self, node: exp.Table) -> exp.CTE | None:
        """Return the common table expression that a name stands for, by the scopes of SQL."""
        name, inside = node.name.lower(), None
        parent = node.parent
        while parent is not None:
            if isinstance(parent, exp.CTE):
                inside = parent
            found = parent.args.get("with_") if isinstance(parent, exp.Query) else None
            if isinstance(parent, exp.With):
                before = parent.expressions[: parent.expressions.index(inside)] if inside is not None else []
                visible = before + ([inside] if parent.recursive and inside is not None else [])
                for cte in reversed(visible):
                    if cte.alias.lower() == name:
                        return cte  # type: ignore[no-any-return]
            elif found is not None and (inside is None or inside.parent is not found):
                for cte in reversed(found.expressions):
                    if cte.alias.lower() == name:
                        return cte  # type: ignore[no-any-return]
            parent = parent.parent
        return None

    def _mention(self, node: exp.Table) -> None:
        if node.args.get("db"):
            raise InvalidInputError(f"there is no table {node.sql(dialect=IcefloeDialect)}. Tables have no schema")
        text = _without_alias(node)
        version, at = _point_in_time(node)
        identifier = node.this
        quoted = bool(identifier.args.get("quoted"))
        table = self._tables.find(identifier.name, quoted=quoted, version=version, at=at)
        alias = node.args.get("alias")
        plain = not any(node.args.get(key) for key in ("pivots", "sample", "joins", "laterals", "changes", "when"))
        mention = _Mention(
            node, f"icefloe_{len(self._mentions)}", text, table, plain and not (alias and alias.args.get("columns"))
        )
        if alias is None or alias.this is None:
            alias = alias or exp.TableAlias()
            alias.set("this", exp.to_identifier(identifier.name, quoted=True))
            node.set("alias", alias)
        node.set("this", exp.to_identifier(mention.name, quoted=True))
        node.set("version", None)
        self._mentions[id(node)] = mention

    def sources(self, select: exp.Select) -> list[_Source]:
        """Return the entries of FROM and JOIN of one SELECT."""
        found = self._sources.get(id(select))
        if found is None:
            start = select.args.get("from_")
            joins = select.args.get("joins") or []
            found = [self._source(start.this, None)] if start is not None else []
            found += [self._source(join.this, join) for join in joins]
            for lateral in select.args.get("laterals") or []:
                found.append(_Source(lateral.alias.lower(), None))
            _mark_nullable(found)
            self._sources[id(select)] = found
        return found

    def _source(self, node: exp.Expr, join: exp.Join | None) -> _Source:
        alias = str(node.alias_or_name).lower()
        mention = self._mentions.get(id(node))
        if mention is not None:
            names = frozenset(name.lower() for name in mention.table.names)
            return _Source(alias, join, mention, columns=names if mention.is_plain else None)
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            cte = self._find_cte(node)
            plain = cte is not None and not node.args.get("pivots") and not node.args.get("sample")
            if cte is not None and plain and isinstance(cte.this, exp.Query):
                renamed = cte.args["alias"].args.get("columns") or (node.args.get("alias") or exp.TableAlias()).columns
                columns = None if renamed else self._output(cte.this)
                recursive = isinstance(cte.parent, exp.With) and bool(cte.parent.recursive)
                shared = recursive or len(self._ctes.get(id(cte), ())) > 1
                return _Source(alias, join, query=cte.this, columns=columns, is_shared=shared)
        if isinstance(node, exp.Subquery) and not node.args.get("pivots") and isinstance(node.this, exp.Query):
            renamed = (node.args.get("alias") or exp.TableAlias()).columns
            return _Source(alias, join, query=node.this, columns=None if renamed else self._output(node.this))
        return _Source(alias, join)

    def _output(self, query: exp.Query) -> frozenset[str] | None:
        """Return the names of the columns of a query, or None if they are not known."""
        if isinstance(query, exp.Subquery):
            return self._output(query.this)
        if isinstance(query, exp.SetOperation):
            return self._output(query.this) if isinstance(query.this, exp.Query) else None
        if not isinstance(query, exp.Select):
            return None
        names: set[str] = set()
        for projection in query.expressions:
            if not projection.is_star:
                names.add(projection.alias_or_name.lower())
                continue
            if projection.args.get("except_") or projection.args.get("replace") or projection.args.get("rename"):
                return None
            wanted = projection.table.lower() if isinstance(projection, exp.Column) else None
            for source in self.sources(query):
                if wanted in (None, source.alias):
                    if source.columns is None:
                        return None
                    names |= source.columns
        return frozenset(names)

    def resolve(self, select: exp.Select, column: exp.Expr) -> _Source | None:
        """Return the source of a column in its own SELECT, or None if that is not certain."""
        if not isinstance(column, exp.Column) or isinstance(column.this, exp.Star) or column.args.get("db"):
            return None
        sources, name = self.sources(select), column.name.lower()
        if column.table:
            alike = [source for source in sources if source.alias == column.table.lower()]
            return alike[0] if len(alike) == 1 and name in (alike[0].columns or ()) else None
        if any(source.columns is None for source in sources):
            return None
        holding = [source for source in sources if name in (source.columns or ())]
        return holding[0] if len(holding) == 1 else None

    def _check_columns(self) -> None:
        """Raise an error for a column that no table of the query has.

        Names whose meaning is not certain are left to the engine.
        """
        for column in self._query.find_all(exp.Column):
            if isinstance(column.this, exp.Star) or column.find_ancestor(exp.Lambda, exp.Pivot) is not None:
                continue
            scope = column.find_ancestor(exp.Select, exp.SetOperation)
            sources: list[_Source] = []
            named: set[str] = set()
            while isinstance(scope, exp.Select):
                sources += self.sources(scope)
                named |= {each.alias_or_name.lower() for each in scope.expressions if isinstance(each, exp.Alias)}
                scope = scope.find_ancestor(exp.Select, exp.SetOperation)
            if column.table:
                sources = [source for source in sources if source.alias == column.table.lower()]
                named = set()
            known = [source.columns for source in sources if source.columns is not None]
            name = column.name.lower()
            if not sources or len(known) < len(sources) or name in named.union(*known):
                continue
            if not column.table and (name in _NOT_COLUMNS or any(name == source.alias for source in sources)):
                continue
            raise _no_column(column.name, sources)

    # Types. Spark compares and computes floats with integers or doubles as doubles.

    def _unify_types(self) -> None:
        for literal in list(self._query.find_all(exp.Literal)):
            inside = literal.find_ancestor(exp.DataType, exp.TableSample, exp.Interval, exp.Cast, exp.Limit, exp.Offset)
            if not literal.is_string and not literal.this.isdigit() and (inside is None or inside.this is not literal):
                literal.replace(_as_double(literal))
        for tried in list(self._query.find_all(exp.TryCast)):
            # A cast that is not possible is an error.
            tried.replace(exp.Cast(this=tried.this, to=tried.to))
        for function in list(self._query.find_all(exp.Anonymous)):
            if function.name.lower() == "std":
                function.replace(exp.Stddev(this=function.expressions[0]))
        for node in list(self._query.find_all(exp.Div, *_PROMOTED)):
            sides = node.this, node.expression
            kinds = [self.kind(side) for side in sides]
            for side, kind, other in zip(sides, kinds, reversed(kinds), strict=True):
                computed = isinstance(node, exp.Div) or (other == "literal" and isinstance(node, _ARITHMETIC))
                if kind == "single" and (computed or other in ("double", "whole", "other")):
                    side.replace(_as_double(side))
        for cast in list(self._query.find_all(exp.Cast)):
            fraction = isinstance(cast.this, exp.Literal) and not cast.this.is_string and not cast.this.this.isdigit()
            if cast.to.this.name in _WHOLE and (fraction or self.kind(cast.this) in ("single", "double")):
                cast.meta[DROPS_FRACTION] = True

    def kind(self, node: exp.Expr) -> str:
        """Return the kind of a number: single, double, whole, literal or other."""
        if isinstance(node, exp.Paren | exp.Neg | exp.Abs | exp.Round | exp.Min | exp.Max):
            return self.kind(node.this)
        if isinstance(node, exp.Column):
            select = node.find_ancestor(exp.Select)
            source = self.resolve(select, node) if select is not None else None
            if source is None:
                return "other"
            if source.mention is not None:
                name = source.mention.table.find_column(node.name)
                return _kind_of_type(source.mention.table.schema.field(name).type) if name else "other"
            return self._kind_of_output(source.query, node.name.lower())
        if isinstance(node, exp.Literal):
            return "other" if node.is_string else "literal"
        if isinstance(node, exp.Cast):
            if isinstance(node.this, exp.Literal) and not node.this.is_string:
                return "literal"
            named = node.to.this.name
            return "whole" if named in _WHOLE else {"FLOAT": "single", "DOUBLE": "double"}.get(named, "other")
        if isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Mod):
            kinds = {self.kind(node.this), self.kind(node.expression)}
            if kinds == {"single"}:
                return "single"
            return "other" if "other" in kinds else "double" if kinds & {"single", "double"} else "whole"
        return "double" if isinstance(node, exp.Div | exp.Avg | exp.Stddev) else "other"

    def _kind_of_output(self, query: exp.Query | None, name: str) -> str:
        if not isinstance(query, exp.Select):
            return "other"
        for projection in query.expressions:
            if projection.alias_or_name.lower() == name and not projection.is_star:
                return self.kind(projection.unalias())
            if projection.is_star and len(self.sources(query)) == 1:
                [source] = self.sources(query)
                column = exp.column(name, quoted=True)
                column.parent = projection.parent
                return self.kind(column) if source.columns and name in source.columns else "other"
        return "other"

    # Columns.

    def _find_stars(self, select: exp.Select) -> None:
        natural = any(join.method == "NATURAL" for join in select.args.get("joins") or [])
        for star in own_nodes(select, exp.Star):
            if isinstance(star.parent, exp.Count):
                continue
            qualifier = star.parent.table.lower() if isinstance(star.parent, exp.Column) else None
            self._want_all(source for source in self.sources(select) if qualifier in (None, "", source.alias))
        if natural:
            self._want_all(self.sources(select))

    def _want_all(self, sources: Iterator[_Source] | Sequence[_Source]) -> None:
        for source in sources:
            if source.mention is not None:
                source.mention.all_columns = True

    def _needed_columns(self) -> dict[str, tuple[str, ...]]:
        """Return the columns of each mention whose names appear in the query.

        A name can mean several things. A column that the query may mean is always present, so that it is not mistaken
        for another one.
        """
        used = {(each.name.lower(), each.table.lower()) for each in self._query.find_all(exp.Column)}
        for join in self._query.find_all(exp.Join):
            used |= {(each.name.lower(), "") for each in join.args.get("using") or []}
        needed = {}
        for mention in self._mentions.values():
            names = mention.table.names
            everything = mention.all_columns or not mention.is_plain
            wanted = [
                name
                for name in names
                if everything or (name.lower(), "") in used or (name.lower(), mention.alias) in used
            ]
            needed[mention.name] = tuple(wanted)
        return needed

    # Conditions.

    def _filters(self, select: exp.Select) -> list[exp.Expr]:
        where = select.args.get("where")
        return conjuncts(where.this) if where is not None else []

    def _push(self, select: exp.Select, condition: exp.Expr, only: _Source | None) -> None:
        """Note a condition of a SELECT for the table whose columns it contains.

        `only` is the joined source of an ON clause. Other sources are ignored then.
        """
        if condition.find(exp.Query, exp.AggFunc, exp.Window) is not None:
            return
        columns = list(condition.find_all(exp.Column))
        found = {id(source): source for source in (self.resolve(select, column) for column in columns)}
        source = next(iter(found.values())) if len(found) == 1 else None
        if source is None or (only is not None and source is not only):
            return
        if only is None and not all(_is_ordinary(each.join) for each in self.sources(select)):
            return
        if source.mention is not None:
            self._note(source, condition, check_null=only is None)
        elif source.query is not None and not source.is_shared:
            self._push_inside(source, condition, check_null=only is None)

    def _note(self, source: _Source, condition: exp.Expr, *, check_null: bool) -> None:
        mention = source.mention
        assert mention is not None
        if not mention.is_plain:
            return
        made = _condition(mention.table, condition)
        if check_null and source.may_be_null and not _rejects_null(made.predicate):
            return
        if made.dimension is not None or not isinstance(made.predicate, Unknown):
            mention.conditions.setdefault(made.text, made)

    def _push_inside(self, source: _Source, condition: exp.Expr, *, check_null: bool) -> None:
        """Note a condition on a subquery for the tables of the subquery, if its columns are columns of tables."""
        inner = source.query
        while isinstance(inner, exp.Subquery):
            inner = inner.this if not inner.args.get("limit") and not inner.args.get("offset") else None
        if not isinstance(inner, exp.Select) or not _is_transparent(inner):
            return
        plain = predicate_of(condition, lambda node: node.name if isinstance(node, exp.Column) else None)
        if check_null and source.may_be_null and not _rejects_null(plain):
            return
        grouping = _grouping(inner)
        moved = condition.copy()
        for column in list(moved.find_all(exp.Column)):
            target = self._projected(inner, column.name.lower())
            if target is None or (grouping is not None and canonical(target) not in grouping):
                return
            if column is moved:
                moved = target.copy()
            else:
                column.replace(target.copy())
        self._push(inner, moved, None)

    def _projected(self, select: exp.Select, name: str) -> exp.Column | None:
        """Return the column of a table that a SELECT returns under a name."""
        for projection in select.expressions:
            if projection.is_star:
                if isinstance(projection, exp.Column) or len(self.sources(select)) != 1:
                    return None
                return exp.column(name, quoted=True)
            if projection.alias_or_name.lower() == name:
                target = projection.unalias()
                return target if isinstance(target, exp.Column) else None
        return None

    def _push_joins(self, select: exp.Select) -> None:
        if not all(_is_ordinary(each.join) for each in self.sources(select)):
            return
        for source in self.sources(select):
            on = source.join.args.get("on") if source.join is not None else None
            if source.join is None or on is None:
                continue
            for condition in conjuncts(on):
                if source.join.side in ("", "LEFT"):
                    # A row of the right side that fails the condition matches nothing.
                    self._push(select, condition, source)
                if not source.join.side and source.join.kind in ("", "INNER"):
                    self._push(select, condition, None)

    # Aggregates.

    def _aggregate(self, select: exp.Select) -> None:
        if select.args.get("group") is None and not any(own_nodes(select, exp.AggFunc)):
            return
        sources = self.sources(select)
        if all(source.mention is None for source in sources):
            return
        block = _Block(self, select)
        reason = block.find_obstacle()
        for source in sources:
            if source.mention is not None and source.mention.table.view.table is None:
                source.mention.fallback = reason

    def wants_rows(self, mention: _Mention) -> bool:
        """Return whether the caller asked for the rows of a table, because there would be too many groups."""
        return mention.name in self._rows_only


class _Block:
    """A SELECT with aggregates, and its replacement by a SELECT from the groups."""

    def __init__(self, planner: _Planner, select: exp.Select) -> None:
        self._planner = planner
        self._select = select
        self._keys: dict[str, Key] = {}
        self._measures: dict[str, Measure] = {}
        self._filters: dict[str, Condition] = {}

    @cached_property
    def _source(self) -> _Source:
        return self._planner.sources(self._select)[0]

    @cached_property
    def _mention(self) -> _Mention:
        assert self._source.mention is not None
        return self._source.mention

    def find_obstacle(self) -> str | None:
        """Rewrite the SELECT and return None, or return why it is not possible."""
        select = self._select
        if len(self._planner.sources(select)) != 1:
            return "it joins tables"
        if self._source.mention is None or self._mention.table.view.table is not None:
            return "it does not read an array"
        if not self._mention.is_plain:
            return "the table is sampled, pivoted or has renamed columns"
        if self._planner.wants_rows(self._mention):
            return "there are about as many groups as cells"
        if any(own_nodes(select, exp.Window)):
            return "it has window functions"
        if select.args.get("distinct") is not None and select.args["distinct"].args.get("on"):
            return "it has DISTINCT ON"
        reason = self._find_keys() or self._check_filters()
        return reason or self._rewrite()

    def _find_keys(self) -> str | None:
        group = self._select.args.get("group")
        if group is None:
            return None
        if any(group.args.get(kind) for kind in ("cube", "rollup", "grouping_sets", "totals")):
            return "it has several groupings"
        written = list(group.expressions)
        if group.args.get("all"):
            written = [p.unalias() for p in self._select.expressions if not p.find(exp.AggFunc)]
        for expression in written:
            node = self._group_expression(expression)
            if node is None:
                return f"{expression.sql(dialect=IcefloeDialect)} is not a function of a dimension"
            columns = {self._column(column) for column in node.find_all(exp.Column)}
            name = next(iter(columns)) if len(columns) == 1 else None
            if name is None or name not in self._mention.table.dimensions or not is_deterministic(node):
                return f"{node.sql(dialect=IcefloeDialect)} is not a function of a dimension"
            text = canonical(node)
            plain = _plain(self._mention.table, node)
            self._keys.setdefault(text, Key(f"icefloe_key_{len(self._keys)}", plain, name))
        return None

    def _group_expression(self, node: exp.Expr) -> exp.Expr | None:
        projections = self._select.expressions
        if isinstance(node, exp.Literal) and not node.is_string and node.this.isdigit():
            position = int(node.this) - 1
            return projections[position].unalias() if 0 <= position < len(projections) else None
        if isinstance(node, exp.Column) and not node.table and self._column(node) is None:
            named = [each for each in projections if each.alias.lower() == node.name.lower()]
            return named[0].unalias() if len(named) == 1 else None
        return node

    def _column(self, node: exp.Expr) -> str | None:
        if not isinstance(node, exp.Column) or self._planner.resolve(self._select, node) is not self._source:
            return None
        return self._mention.table.find_column(node.name)

    def _check_filters(self) -> str | None:
        table = self._mention.table
        zone = session_zone(self._planner._tables.zone)
        for node in self._planner._filters(self._select):
            text = node.sql(dialect=IcefloeDialect)
            columns = [self._column(column) for column in node.find_all(exp.Column)]
            if node.find(exp.Query) is not None or not columns or None in columns:
                return f"the condition {text} is not about this table only"
            condition = _condition(table, node)
            if condition.dimension is None and not evaluate.is_exact(table.schema, condition.predicate, zone):
                return f"the condition {text} needs rows"
            self._filters[condition.text] = replace(condition, is_exact=True)
        return None

    def _rewrite(self) -> str | None:
        select = self._select
        clauses = [select.args[name] for name in ("having", "order") if select.args.get(name) is not None]
        if select.args.get("qualify") is not None or select.args.get("sort") is not None:
            return "it has QUALIFY or SORT BY"
        aliases = {each.alias.lower() for each in select.expressions if each.alias}
        replaced: list[tuple[exp.Expr, exp.Expr]] = []
        for root in [*select.expressions, *clauses]:
            reason = self._plan_replacements(root, aliases, replaced)
            if reason is not None:
                return reason
        for projection in list(select.expressions):
            if isinstance(projection, exp.Column):
                name = exp.to_identifier(projection.name, quoted=True)
                named = exp.alias_(projection.copy(), name)
                swapped = [(named.this if old is projection else old, new) for old, new in replaced]
                projection.replace(named)
                replaced[:] = swapped
        for old, new in replaced:
            old.replace(new)
        having = select.args.get("having")
        select.set("where", exp.Where(this=having.this) if having is not None else None)
        grouped = select.args.get("group") is not None
        select.set("group", None)
        select.set("having", None)
        keys, measures = tuple(self._keys.values()), tuple(self._measures.values())
        self._mention.aggregation = Aggregation(keys, measures, grouped)
        self._mention.conditions.update(self._filters)
        return None

    def _plan_replacements(
        self, root: exp.Expr, aliases: set[str], replaced: list[tuple[exp.Expr, exp.Expr]]
    ) -> str | None:
        in_order = isinstance(root, exp.Order)
        pending = [root]
        while pending:
            node = pending.pop()
            if isinstance(node, exp.Query):
                if self._is_correlated(node):
                    return "a subquery refers to the columns of the groups"
                continue
            if isinstance(node, exp.Column):
                bare = not node.table and node.name.lower() in aliases
                if bare and (in_order and isinstance(node.parent, exp.Ordered)):
                    continue  # a column of the result
                clash = bare and isinstance(root, exp.Having | exp.Order) and self._column(node) is not None
                if clash and canonical(node) not in self._keys:
                    return f"{node.name} is a column of the table and of the result"
            key = self._keys.get(canonical(node)) if not isinstance(node, exp.Literal | exp.Identifier) else None
            if key is not None:
                replaced.append((node, self._group_column(key.name)))
                continue
            if isinstance(node, exp.AggFunc):
                measure = self._measure(node)
                if measure is None:
                    return f"{node.sql(dialect=IcefloeDialect, normalize_functions='lower')} needs rows"
                replaced.append((node, self._group_column(measure.name)))
                continue
            if isinstance(node, exp.Column):
                if self._column(node) is not None:
                    return f"{node.name} is not grouped"
                continue
            if isinstance(node, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
                return f"{node.sql(dialect=IcefloeDialect)} needs rows"
            if isinstance(node, exp.Star):
                return "it selects all columns"
            pending.extend(node.iter_expressions())
        return None

    def _group_column(self, name: str) -> exp.Column:
        return exp.column(exp.to_identifier(name, quoted=True), table=self._mention.node.args["alias"].this.copy())

    def _measure(self, node: exp.AggFunc) -> Measure | None:
        function = _MEASURES.get(type(node))
        if function is None or node.args.get("expressions") or node.args.get("ignore_nulls"):
            return None
        column: str | None = None
        if isinstance(node, exp.Count) and (isinstance(node.this, exp.Star) or _is_constant(node.this)):
            pass
        else:
            column = self._column(node.this)
            if column is None or not _is_measurable(self._mention.table.schema.field(column).type, function):
                return None
        text = f"{function}({column})"
        made = Measure(f"icefloe_value_{len(self._measures)}", function, column)
        return self._measures.setdefault(text, made)

    def _is_correlated(self, query: exp.Query) -> bool:
        names = {name.lower() for name in self._mention.table.names}
        for column in query.find_all(exp.Column):
            if column.table.lower() == self._mention.alias:
                return True
            select = column.find_ancestor(exp.Select)
            may_be_outer = select is None or self._planner.resolve(select, column) is None
            if not column.table and column.name.lower() in names and may_be_outer:
                return True
        return False


def _no_column(name: str, sources: Sequence[_Source]) -> InvalidInputError:
    names: dict[str, None] = {}
    for source in sources:
        spelled = source.mention.table.names if source.mention is not None else sorted(source.columns or ())
        names |= dict.fromkeys(spelled)
    tables = ", ".join(dict.fromkeys(s.mention.text if s.mention is not None else s.alias for s in sources))
    near = suggest(name, names)
    return InvalidInputError(f"there is no column {name!r} in {tables}{near}. There are: {', '.join(names)}")


def _name_columns(select: exp.Select) -> None:
    """Give the columns of the result the same names in all engines: the text of their expressions."""
    for number, projection in enumerate(select.expressions):
        star = isinstance(projection, exp.Star) or projection.is_star
        if not star and not isinstance(projection, exp.Alias | exp.Column | exp.Aliases | exp.Explode):
            name = projection.sql(dialect=IcefloeDialect, normalize_functions="lower", comments=False)
            named = exp.alias_(projection.copy(), exp.to_identifier(name, quoted=True))
            select.expressions[number].replace(named)


def _without_alias(node: exp.Table) -> str:
    copy = node.copy()
    copy.set("alias", None)
    copy.set("joins", None)
    return copy.sql(dialect=IcefloeDialect, comments=False)


def _point_in_time(node: exp.Table) -> tuple[str | None, str | None]:
    """Return the text of VERSION AS OF and of TIMESTAMP AS OF."""
    version = node.args.get("version")
    if version is None:
        return None, None
    value = version.expression
    text = value.this.name if isinstance(value, exp.Cast) else value.name if isinstance(value, exp.Literal) else None
    if text is None or version.args.get("kind") != "AS OF":
        raise InvalidInputError(
            f"{node.sql(dialect=IcefloeDialect)}: give a constant, such as VERSION AS OF 'v1' or "
            "TIMESTAMP AS OF '2024-05-01 12:00:00'"
        )
    return (text, None) if version.name == "VERSION" else (None, text)


def _mark_nullable(sources: Sequence[_Source]) -> None:
    for number, source in enumerate(sources):
        side = source.join.side if source.join is not None else ""
        if side in ("LEFT", "FULL"):
            source.may_be_null = True
        if side in ("RIGHT", "FULL"):
            for earlier in sources[:number]:
                earlier.may_be_null = True


def _is_ordinary(join: exp.Join | None) -> bool:
    """Return whether a join pairs rows by conditions only. An ASOF join also depends on rows that do not match."""
    if join is None:
        return True
    return (
        join.method in ("", "NATURAL")
        and join.side in ("", "LEFT", "RIGHT", "FULL")
        and join.kind in ("", "INNER", "OUTER", "CROSS", "SEMI", "ANTI")
    )


def _is_transparent(select: exp.Select) -> bool:
    """Return whether rows that a later condition drops can be dropped before this SELECT."""
    if any(select.args.get(name) for name in ("limit", "offset", "qualify", "sort", "sample", "pivots", "match")):
        return False
    if any(own_nodes(select, exp.Window, exp.Explode)) or (select.args.get("distinct") or exp.Distinct()).args.get(
        "on"
    ):
        return False
    return select.args.get("group") is not None or not any(own_nodes(select, exp.AggFunc))


def _grouping(select: exp.Select) -> frozenset[str] | None:
    """Return the plain columns of GROUP BY, or None without GROUP BY."""
    group = select.args.get("group")
    if group is None:
        return None
    if any(group.args.get(kind) for kind in ("cube", "rollup", "grouping_sets", "all", "totals")):
        return frozenset()
    return frozenset(canonical(node) for node in group.expressions if isinstance(node, exp.Column))


def _plain(table: Table, node: exp.Expr) -> exp.Expr:
    """Return an expression with plain names of columns, as the table has them."""
    copy = node.copy()
    for column in list(copy.find_all(exp.Column)):
        plain = exp.column(exp.to_identifier(table.find_column(column.name) or column.name, quoted=True))
        if column is copy:
            copy = plain
        else:
            column.replace(plain)
    return copy


def _condition(table: Table, node: exp.Expr) -> Condition:
    plain = _plain(table, node)
    predicate = predicate_of(plain, lambda each: each.name if isinstance(each, exp.Column) else None)
    columns = {column.name for column in plain.find_all(exp.Column)}
    only = next(iter(columns)) if len(columns) == 1 else None
    dimension = only if only in table.dimensions and is_deterministic(plain) else None
    return Condition(node.sql(dialect=IcefloeDialect, comments=False), plain, predicate, dimension)


def _rejects_null(predicate: Predicate) -> bool:
    """Return whether a condition is never true for nulls."""
    if isinstance(predicate, And):
        return any(map(_rejects_null, predicate.parts))
    if isinstance(predicate, Or):
        return all(map(_rejects_null, predicate.parts))
    if isinstance(predicate, NullTest):
        return predicate.negated
    return isinstance(predicate, Comparison | Membership)


def _is_constant(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal | exp.Boolean)


def _is_measurable(type: pa.DataType, function: str) -> bool:
    if function == "count":
        return True
    if function in ("min", "max"):
        return bool(pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_timestamp(type))
    return str(type) in _SUMMABLE


def _kind_of_type(type: pa.DataType) -> str:
    if pa.types.is_float32(type):
        return "single"
    return "double" if pa.types.is_float64(type) else "whole" if pa.types.is_integer(type) else "other"


def _as_double(node: exp.Expr) -> exp.Cast:
    return exp.Cast(this=node.copy(), to=exp.DataType.build("double"))
