"""The three conditions on places: a box, a circle, a polygon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.errors import MalformedError, OutOfRangeError
from service.filters.members import object_of
from service.filters.tree import GeoBox, GeoPolygon, GeoRadius, Ring

RING_POINTS_MIN = 4


def _box(value: Any, path: str) -> GeoBox:
    members = object_of(value, path, ("top_left", "bottom_right"))
    top, left = _point(members.get("top_left"), f"{path}.top_left")
    bottom, right = _point(members.get("bottom_right"), f"{path}.bottom_right")
    return GeoBox(top, left, bottom, right)


def _radius(value: Any, path: str) -> GeoRadius:
    members = object_of(value, path, ("center", "radius"))
    lat, lon = _point(members.get("center"), f"{path}.center")
    return GeoRadius(lat, lon, _number(members.get("radius"), f"{path}.radius"))


def _polygon(value: Any, path: str) -> GeoPolygon:
    members = object_of(value, path, ("exterior", "interiors"))
    interiors = [] if members.get("interiors") is None else members["interiors"]
    if not isinstance(interiors, list):
        raise MalformedError(f"{path}.interiors is {interiors!r}; it must be a list of rings.")
    return GeoPolygon(
        _ring(members.get("exterior"), f"{path}.exterior"),
        tuple(_ring(ring, f"{path}.interiors[{at}]") for at, ring in enumerate(interiors)),
    )


def _ring(value: Any, path: str) -> Ring:
    points = object_of(value, path, ("points",)).get("points")
    if not isinstance(points, list):
        raise MalformedError(f"{path}.points is {points!r}; it must be a list of points.")
    ring = tuple(_point(point, f"{path}.points[{at}]") for at, point in enumerate(points))
    if len(ring) < RING_POINTS_MIN or ring[0] != ring[-1]:
        raise OutOfRangeError(
            f"{path} has {len(ring)} points; a ring has at least {RING_POINTS_MIN}, and the last is the first again."
        )
    return ring


def _point(value: Any, path: str) -> tuple[float, float]:
    """(lat, lon)."""
    members = object_of(value, path, ("lat", "lon"))
    lat, lon = (_number(members.get(name), f"{path}.{name}") for name in ("lat", "lon"))
    for name, degrees, most in (("lat", lat, 90), ("lon", lon, 180)):
        if not -most <= degrees <= most:
            raise OutOfRangeError(f"{path}.{name} is {degrees}; it goes from -{most} to {most} degrees.")
    return lat, lon


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedError(f"{path} is {value!r}; it must be a number.")
    try:
        return float(value)
    except OverflowError:
        raise OutOfRangeError(f"{path} is an integer that no float holds.") from None


GEO_PREDICATES: dict[str, Callable[[Any, str], GeoBox | GeoRadius | GeoPolygon]] = {
    "geo_bounding_box": _box,
    "geo_radius": _radius,
    "geo_polygon": _polygon,
}
