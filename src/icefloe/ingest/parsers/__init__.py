"""Parsers: the arrays, attributes and chunk references of one source file.

Modules
-------
- `geotiff`: TIFF, GeoTIFF and cloud-optimised GeoTIFF, read with tifffile and, for most compressions, imagecodecs.
- `grib`: GRIB edition 1 and 2, read with ecCodes.
- `grib_grid`: The grids of GRIB messages: dimensions, coordinates and the map projection, from ecCodes' latitudes
  and longitudes.
- `grib_index`: GRIB files by their index files: `.idx` of wgrib2 (NOAA) and `.index` (ECMWF), without reading the
  data.
- `hdf5`: NetCDF4 and HDF5 files, read with h5py.
- `kerchunk`: Sources that are references already: Kerchunk sets (JSON or Parquet), and any parser of the
  VirtualiZarr package.
- `netcdf3`: NetCDF classic files (CDF-1, CDF-2, CDF-5).
- `registry`: What every parser offers (a schema, chunk references, values), and which parser reads a source.
- `zarr`: Zarr v2 and v3 stores in a folder or bucket.
"""
