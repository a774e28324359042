"""Whether a place lies in a box, a circle or a polygon, as Qdrant's local mode computes it."""

from __future__ import annotations

import math
from typing import Any

from service.filters.tree import Geo, GeoBox, GeoPolygon, GeoRadius, Ring

EARTH_RADIUS = 6_371_008.8
"""Mean radius in metres."""


def is_within(geo: Geo, value: Any) -> bool:
    """value: JSON; only an object with numbers `lat` and `lon` is a place."""
    place = _place(value)
    if place is None:
        return False
    lat, lon = place
    if isinstance(geo, GeoBox):
        if geo.left > geo.right:  # across the antimeridian
            inside = lon > geo.left or lon < geo.right
        else:
            inside = geo.left < lon < geo.right
        return inside and geo.top > lat > geo.bottom
    if isinstance(geo, GeoRadius):
        return distance((lat, lon), (geo.lat, geo.lon)) < geo.radius
    assert isinstance(geo, GeoPolygon)
    return in_ring((lat, lon), geo.exterior, on_edge=False) and not any(
        in_ring((lat, lon), ring, on_edge=True) for ring in geo.interiors
    )


def distance(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Metres between two (lat, lon) along the sphere (haversine)."""
    lat, lon = map(math.radians, one)
    other_lat, other_lon = map(math.radians, other)
    half = (
        math.sin((other_lat - lat) / 2) ** 2
        + math.cos(lat) * math.cos(other_lat) * math.sin((other_lon - lon) / 2) ** 2
    )
    # Places far outside the globe, and rounding, may bring it past 1.
    return 2 * EARTH_RADIUS * math.asin(math.sqrt(min(1.0, max(0.0, half))))


def in_ring(place: tuple[float, float], ring: Ring, *, on_edge: bool) -> bool:
    """Whether a place is inside a closed ring; on_edge: the answer for one on its edge."""
    points = ring[:-1] if ring[0] == ring[-1] else ring
    x, y = place
    inside = False
    before = points[-1]
    for point in points:
        (xi, yi), (xj, yj) = point, before
        if y * (xi - xj) + yi * (xj - x) + yj * (x - xi) == 0 and (xi - x) * (xj - x) <= 0 and (yi - y) * (yj - y) <= 0:
            return on_edge
        if (yi > y) != (yj > y) and x < (xj - xi) * (y - yi) / (yj - yi) + xi:
            inside = not inside
        before = point
    return inside


def _place(value: Any) -> tuple[float, float] | None:
    if not isinstance(value, dict):
        return None
    found = []
    for name in ("lat", "lon"):
        degrees = value.get(name)
        if isinstance(degrees, bool) or not isinstance(degrees, int | float):
            return None
        try:
            found.append(float(degrees))
        except OverflowError:
            return None
    return (found[0], found[1]) if all(map(math.isfinite, found)) else None
