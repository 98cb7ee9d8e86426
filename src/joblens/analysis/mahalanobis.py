"""Jobs whose metrics are unusual together: a robust Mahalanobis distance.

The covariance is that of Maronna and Zamar (2002), "Robust estimates of location and dispersion for
high-dimensional datasets": pairwise robust covariances, then robust scales along their eigenvectors. Unlike
the minimum covariance determinant it needs no more jobs than metrics, and it has no random start. Metrics are
differences from their median, relative to it. A scale is at least that of `LEAST_DIFFERENCE`, so that jobs
which are almost equal have no outlier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from joblens.analysis.outliers import LEAST_DIFFERENCE, METHODS, OF_NORMAL

Matrix = Any  # of floats

_IN_ONE = METHODS["modified-z"][1]  # the threshold, in standard deviations, of a single metric
_LEAST_SCALE = LEAST_DIFFERENCE / _IN_ONE
_OF_FEW = 7.0  # by simulation: one of 4 to 40 like jobs is then found in about a twentieth of the sets
_LARGEST = 1e6  # relative difference; beyond, sums of squares would lose the others


def threshold(metrics: int, jobs: float = math.inf) -> float:
    """Return the distance that is as rare as 3.5 standard deviations of one metric, and of few jobs more:
    their scales are often small by chance.

    The quantile of chi-squared by Wilson and Hilferty (1931).
    """
    one_sided = 3.31  # standard deviations beyond which are as many values as beyond 3.5 on both sides
    part = 2.0 / (9.0 * metrics)
    of_few = 1.0 + _OF_FEW / jobs
    return of_few * math.sqrt(metrics * (1.0 - part + one_sided * math.sqrt(part)) ** 3)


def distances(jobs: Sequence[Sequence[float]]) -> list[float]:
    """Return the distance of each job from the centre of all. A metric whose median is 0 is relative to its
    mean."""
    values = numpy.array(jobs, dtype=float)
    if values.size == 0:
        return [0.0] * len(jobs)
    relative = _relative(values)
    _, vectors = numpy.linalg.eigh(_pairwise_covariance(relative))
    turned = relative @ vectors
    centre = numpy.median(turned, axis=0)
    found = numpy.sqrt((((turned - centre) / _scales(turned)) ** 2).sum(axis=1))
    return [float(it) for it in found]


def _relative(values: Matrix) -> Matrix:
    middle = numpy.median(values, axis=0)
    unit = numpy.where(middle != 0, numpy.abs(middle), numpy.abs(values).mean(axis=0))
    with numpy.errstate(over="ignore"):
        return numpy.clip((values - middle) / numpy.where(unit > 0, unit, 1.0), -_LARGEST, _LARGEST)


def _scales(columns: Matrix) -> Matrix:
    """Return the median deviation of each column, as a standard deviation."""
    away = numpy.abs(columns - numpy.median(columns, axis=0))
    return numpy.maximum(numpy.median(away, axis=0) / OF_NORMAL, _LEAST_SCALE)


def _pairwise_covariance(columns: Matrix) -> Matrix:
    """The covariance of two columns from the scales of their sum and difference (Gnanadesikan and
    Kettenring 1972)."""
    both = columns[:, :, None] + columns[:, None, :], columns[:, :, None] - columns[:, None, :]
    plus, minus = (_scales(it.reshape(len(columns), -1)) ** 2 for it in both)
    size = columns.shape[1]
    return ((plus - minus) / 4.0).reshape(size, size)
