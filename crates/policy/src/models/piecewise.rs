//! Piecewise-linear regression: two straight lines that meet, by least squares, the break found by search.

use std::fmt;

/// `y` over `x` by two straight lines that meet at a break, or by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PiecewiseLinear {
    /// Position of the break; some point of the line if there is only one line.
    x: f64,
    y: f64,
    slope_before: f64,
    slope_after: f64,
}

/// Reason why no lines could be fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FitError {
    /// A line needs two different `x`.
    TooFew {
        /// Different `x` that were given.
        distinct: usize,
    },
    /// A coordinate is not finite, or (for throughputs) not above zero.
    Unusable {
        /// The point.
        point: (f64, f64),
    },
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew { distinct } => write!(f, "measured at {distinct} different values, and a line needs at least 2"),
            Self::Unusable { point: (x, y) } => write!(f, "measured {y} at {x}, which can't be"),
        }
    }
}

impl std::error::Error for FitError {}

/// Squared errors that differ by less than this share of all variation are equal: exact data leaves only rounding.
const ROUNDING: f64 = 1e-12;

impl PiecewiseLinear {
    /// Fits the continuous line with at most one break that has the least sum of squared errors.
    ///
    /// A break needs four different `x`. Between each two neighbours, both sides are fitted by themselves; if these
    /// lines meet between the two, no better break is there. Elsewhere the best break is at a measured `x` (Hudson,
    /// 1966). So the search is exact, and recovers data without noise. If a break gains nothing, there is none.
    ///
    /// # Errors
    /// Fewer than two different `x`; a coordinate that is not finite.
    pub fn fit(points: &[(f64, f64)]) -> Result<Self, FitError> {
        if let Some(&point) = points.iter().find(|(x, y)| !(x.is_finite() && y.is_finite())) {
            return Err(FitError::Unusable { point });
        }
        let mut points = points.to_vec();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        // First indices of runs of equal x.
        let starts: Vec<usize> = (0..points.len()).filter(|&i| i == 0 || points[i].0 > points[i - 1].0).collect();
        if starts.len() < 2 {
            return Err(FitError::TooFew { distinct: starts.len() });
        }
        let mut best = line(&points);
        let mut least = best.squared_error(&points);
        let mean = points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64;
        let rounding = ROUNDING * points.iter().map(|point| point.1 * point.1 + mean * mean).sum::<f64>();
        // A break lies somewhere from the last of the left to the first of the right: two different x on each side.
        for &start in starts.iter().take(starts.len() - 1).skip(2) {
            let (left, right) = points.split_at(start);
            for candidate in [
                meeting(left, right),
                Some(broken_at(&points, right[0].0)),
                Some(broken_at(&points, left[left.len() - 1].0)),
            ] {
                let Some(candidate) = candidate else { continue };
                let error = candidate.squared_error(&points);
                if error + rounding < least {
                    (best, least) = (candidate, error);
                }
            }
        }
        Ok(best)
    }

    /// The line's value.
    pub fn at(&self, x: f64) -> f64 {
        let slope = if x < self.x { self.slope_before } else { self.slope_after };
        slope.mul_add(x - self.x, self.y)
    }

    /// Returns the `x` at which the slope changes, if it does.
    pub fn break_at(&self) -> Option<f64> {
        #[expect(clippy::float_cmp, reason = "one line has the same slope twice, not merely a near one")]
        (self.slope_before != self.slope_after).then_some(self.x)
    }

    fn squared_error(&self, points: &[(f64, f64)]) -> f64 {
        points.iter().map(|&(x, y)| (y - self.at(x)).powi(2)).sum()
    }
}

/// The least-squares line; flat through points of one `x`.
fn line(points: &[(f64, f64)]) -> PiecewiseLinear {
    let count = points.len() as f64;
    let x = points.iter().map(|point| point.0).sum::<f64>() / count;
    let y = points.iter().map(|point| point.1).sum::<f64>() / count;
    let xx: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let xy: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let slope = if xx > 0.0 { xy / xx } else { 0.0 };
    PiecewiseLinear {
        x,
        y,
        slope_before: slope,
        slope_after: slope,
    }
}

/// Both sides by themselves, if they meet between the last of the left and the first of the right.
fn meeting(left: &[(f64, f64)], right: &[(f64, f64)]) -> Option<PiecewiseLinear> {
    let (before, after) = (line(left), line(right));
    let closing = before.slope_before - after.slope_before;
    let x = (after.at(0.0) - before.at(0.0)) / closing;
    (x >= left.last()?.0 && x <= right.first()?.0).then(|| PiecewiseLinear {
        x,
        y: before.at(x),
        slope_before: before.slope_before,
        slope_after: after.slope_before,
    })
}

/// The best lines that meet at `knot`, a measured `x` that is neither the first nor the last: the normal equations of
/// `y = value + slope_before * min(x - knot, 0) + slope_after * max(x - knot, 0)`, of which the two slopes have no
/// term in common.
fn broken_at(points: &[(f64, f64)], knot: f64) -> PiecewiseLinear {
    let mut sums = [(0.0, 0.0, 0.0); 2];
    let mut y_sum = 0.0;
    for &(x, y) in points {
        let distance = x - knot;
        let (first, second, product) = &mut sums[usize::from(distance > 0.0)];
        *first += distance;
        *second += distance * distance;
        *product += distance * y;
        y_sum += y;
    }
    let [(u, uu, uy), (v, vv, vy)] = sums;
    let y = (y_sum - u * uy / uu - v * vy / vv) / (points.len() as f64 - u * u / uu - v * v / vv);
    PiecewiseLinear {
        x: knot,
        y,
        slope_before: (uy - u * y) / uu,
        slope_after: (vy - v * y) / vv,
    }
}
