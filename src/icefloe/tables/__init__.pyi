"""Arrays as tables: SQL queries, and selections as Arrow, pandas, Polars and DuckDB."""

from icefloe.tables.queries import QueryResult as QueryResult
from icefloe.tables.queries import sql as sql
from icefloe.tables.table_scan import TableScan as TableScan
from icefloe.tables.table_scan import scan as scan
