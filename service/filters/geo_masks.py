"""Rows that may lie in a place, by the columns of its latitude and longitude; geometry.py decides about those.

may_lie_within()   (n,): a superset of the rows whose object at a path lies within
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from index.columns import Column, PayloadColumns
from index.columns.asking import in_range
from service.filters.geometry import EARTH_RADIUS
from service.filters.tree import Geo, GeoBox, GeoPolygon, GeoRadius

Mask = NDArray[np.bool_]
_MARGIN = 1e-6
"""Degrees added to a box around a circle, for rounding."""


def may_lie_within(geo: Geo, path: tuple[str, ...], columns: PayloadColumns) -> Mask | None:
    """None where columns do not say, as there are none of latitude and longitude."""
    lat, lon = columns.column((*path, "lat")), columns.column((*path, "lon"))
    if lat is None or lon is None:
        return None
    if isinstance(geo, GeoBox):
        inside = _between(lat, geo.bottom, geo.top)
        if geo.left > geo.right:
            return inside & (_between(lon, geo.left, math.inf) | _between(lon, -math.inf, geo.right))
        return inside & _between(lon, geo.left, geo.right)
    if isinstance(geo, GeoPolygon):
        lats, lons = [point[0] for point in geo.exterior], [point[1] for point in geo.exterior]
        return _between(lat, min(lats), max(lats)) & _between(lon, min(lons), max(lons))
    return _near(geo, lat, lon)


def _near(geo: GeoRadius, lat: Column, lon: Column) -> Mask:
    """Within the latitudes and longitudes that a circle touches. What lies beyond the globe's degrees stays in: it is taken
    modulo a turn."""
    angle = geo.radius / EARTH_RADIUS
    reach = math.degrees(angle) + _MARGIN
    beyond = ~_between(lat, -90.0, 90.0) | ~_between(lon, -180.0, 180.0)
    inside = _between(lat, geo.lat - reach, geo.lat + reach)
    if angle < math.pi / 2 and abs(geo.lat) + reach < 90:
        width = math.degrees(math.asin(min(1.0, math.sin(angle) / math.cos(math.radians(geo.lat))))) + _MARGIN
        if geo.lon - width >= -180 and geo.lon + width <= 180:
            inside &= _between(lon, geo.lon - width, geo.lon + width)
    return inside | beyond


def _between(column: Column, low: float, high: float) -> Mask:
    """Rows whose own number is from low to high."""
    bounds = {"gte": low} if math.isfinite(low) else {}
    if math.isfinite(high):
        bounds["lte"] = high
    return column.spread(in_range(column.cells, **bounds))
