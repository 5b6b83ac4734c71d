//! Plots as SVG text. Colours stand for roles: the page's style sheet says what they look like in light and in dark.

use std::ops::Range;

use plotters::{
    coord::{
        cartesian::Cartesian2d,
        ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter},
    },
    prelude::*,
};

pub use plotters::style::RGBColor;

/// Roles of colours, in order of use. The page's style sheet has one rule for each.
pub const SERIES: [RGBColor; 7] = [
    RGBColor(0x33, 0x77, 0xBB),
    RGBColor(0xEE, 0x77, 0x33),
    RGBColor(0x22, 0x99, 0x88),
    RGBColor(0xCC, 0x33, 0x77),
    RGBColor(0x99, 0x88, 0x22),
    RGBColor(0x77, 0x55, 0xCC),
    RGBColor(0x88, 0x88, 0x88),
];
/// Lines of axes, and marks that are no series.
const AXIS: RGBColor = RGBColor(0x66, 0x66, 0x66);
/// Lines that help the eye.
const GRID: RGBColor = RGBColor(0xDD, 0xDD, 0xDD);

/// Pixels of a line of text, at a plot's own size.
const TEXT_PX: u32 = 17;
/// Marks on an axis, about.
const MARKS: u32 = 6;
/// A line of more points has no dot at each.
const DOTS_MAX: usize = 40;

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Title and axes of a plot.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// Quantity of the horizontal axis, with its unit.
    pub x_label: String,
    /// Quantity of the vertical axis, with its unit.
    pub y_label: String,
    /// End of the vertical axis; `None`: just above the largest value.
    pub y_end: Option<f64>,
}

impl Frame {
    /// A plot of the usual size.
    pub fn new(x_label: &str, y_label: &str) -> Self {
        Self {
            size: (560, 320),
            x_label: x_label.into(),
            y_label: y_label.into(),
            y_end: None,
        }
    }
}

/// The colour of a limit, which is not a policy.
pub const LIMIT: RGBColor = SERIES[6];

/// Row of coloured spans on the horizontal axis.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Its name, beside it.
    pub name: String,
    /// From where to where.
    pub spans: Vec<(f64, f64, RGBColor)>,
}

/// Points that a line joins.
#[derive(Clone, Debug)]
pub struct PlotLine {
    /// Its name, for the legend.
    pub name: String,
    /// Its colour.
    pub colour: RGBColor,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// An axis from zero to its end, with marks where we want them, and text at each.
#[derive(Clone, Debug)]
struct Axis {
    end: f64,
    marks: Vec<f64>,
    /// Labels of the axis, one for each unit, instead of numbers.
    names: Vec<String>,
}

impl Axis {
    fn numbers(end: f64) -> Self {
        Self {
            end,
            marks: ticks(end),
            names: Vec::new(),
        }
    }

    fn names(names: &[String]) -> Self {
        Self {
            end: place(names.len().max(1)),
            marks: (0..names.len()).map(|at| place(at) + 0.5).collect(),
            names: names.to_vec(),
        }
    }

    /// Room for its text beside the plot, where it is the vertical one: for the names, about, and for what the axis
    /// shows.
    fn text_px(&self) -> u32 {
        let longest = self.names.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(100);
        (longest as u32 * TEXT_PX * 3 / 5 + 2 * TEXT_PX).max(5 * TEXT_PX)
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (begin, end): (i32, i32)) -> i32 {
        begin + (f64::from(end - begin) * value / self.end).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            Vec::new()
        } else {
            self.marks.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        0.0..self.end
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.names.get(*value as usize).cloned().unwrap_or_else(|| plain(*value))
    }
}

/// Lines over a common axis, which begins at zero. `marks`: places on the horizontal axis to point out.
pub fn lines(frame: &Frame, lines: &[PlotLine], marks: &[f64]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let x_end = most(points().map(|point| point.0));
    let y_end = frame.y_end.unwrap_or_else(|| most(points().map(|point| point.1)) * 1.05);
    draw(frame, Axis::numbers(x_end * 1.02), Axis::numbers(y_end), |chart| {
        point_out(chart, marks, y_end)?;
        // The first one lies on top.
        for line in lines.iter().rev() {
            let colour = line.colour;
            chart.draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?;
            let dots = if line.points.len() <= DOTS_MAX {
                line.points.as_slice()
            } else {
                &[]
            };
            chart.draw_series(dots.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
        }
        Ok(())
    })
}

/// Areas one upon the other, the first one lowest: of each line the heights that it adds, at the same places as the
/// others. `marks` as for [`lines`].
pub fn areas(frame: &Frame, lines: &[PlotLine], marks: &[f64]) -> String {
    let mut edges: Vec<Vec<(f64, f64)>> = Vec::new();
    for line in lines {
        let below = edges.last();
        let height = |at: usize| below.and_then(|edge| edge.get(at)).map_or(0.0, |point| point.1);
        edges.push(line.points.iter().enumerate().map(|(at, (x, y))| (*x, y + height(at))).collect());
    }
    let points = || edges.iter().flatten();
    let x_end = most(points().map(|point| point.0));
    let y_end = frame.y_end.unwrap_or_else(|| most(points().map(|point| point.1)) * 1.05);
    draw(frame, Axis::numbers(x_end * 1.02), Axis::numbers(y_end), |chart| {
        // Each covers those above it down to the axis, so the highest one comes first.
        for (line, edge) in lines.iter().zip(&edges).rev() {
            if let (Some(first), Some(last)) = (edge.first(), edge.last()) {
                let outline: Vec<(f64, f64)> = edge.iter().copied().chain([(last.0, 0.0), (first.0, 0.0)]).collect();
                chart.draw_series([Polygon::new(outline, line.colour.filled())])?;
            }
        }
        point_out(chart, marks, y_end)
    })
}

fn point_out(chart: &mut Chart<'_, '_>, marks: &[f64], y_end: f64) -> Drawn {
    chart.draw_series(marks.iter().map(|mark| PathElement::new(vec![(*mark, 0.0), (*mark, y_end)], AXIS)))?;
    Ok(())
}

/// Bars side by side, the parts of each one upon the other, a colour for each part; `names` below them.
pub fn bars(frame: &Frame, names: &[String], stacks: &[Vec<f64>], colours: &[RGBColor]) -> String {
    let y_end = frame
        .y_end
        .unwrap_or_else(|| most(stacks.iter().map(|stack| stack.iter().sum())) * 1.05);
    draw(frame, Axis::names(names), Axis::numbers(y_end), |chart| {
        for (at, stack) in stacks.iter().enumerate() {
            let (left, mut bottom) = (place(at), 0.0);
            for (part, colour) in stack.iter().zip(colours) {
                let bar = [(left + 0.15, bottom), (left + 0.85, bottom + part)];
                chart.draw_series([Rectangle::new(bar, colour.filled())])?;
                bottom += part;
            }
        }
        Ok(())
    })
}

/// Lanes one below the other, over an axis that begins at zero.
pub fn lanes(frame: &Frame, lanes: &[Lane]) -> String {
    let x_end = most(lanes.iter().flat_map(|lane| &lane.spans).map(|span| span.1));
    // The axis begins below, and the first lane lies on top.
    let names: Vec<String> = lanes.iter().rev().map(|lane| lane.name.clone()).collect();
    draw(frame, Axis::numbers(x_end * 1.02), Axis::names(&names), |chart| {
        for (at, lane) in lanes.iter().rev().enumerate() {
            let (bottom, top) = (place(at) + 0.2, place(at) + 0.8);
            for (begin, end, colour) in &lane.spans {
                chart.draw_series([Rectangle::new([(*begin, bottom), (*end, top)], colour.filled())])?;
                // So that what is short is seen, too.
                chart.draw_series([PathElement::new(vec![(*begin, bottom), (*begin, top)], colour.stroke_width(2))])?;
            }
        }
        Ok(())
    })
}

/// The bars of a histogram: `counts[i]` from `i` to `i + 1` times `bin`.
pub fn histogram(frame: &Frame, bin: f64, heights: &[f64], mark: Option<f64>) -> String {
    let x_end = bin * place(heights.len());
    let y_end = most(heights.iter().copied()) * 1.05;
    draw(frame, Axis::numbers(x_end), Axis::numbers(y_end), |chart| {
        let colour = SERIES.first().copied().unwrap_or(AXIS);
        chart.draw_series(heights.iter().enumerate().map(|(at, height)| {
            let left = bin * place(at);
            Rectangle::new([(left + 0.1 * bin, 0.0), (left + 0.9 * bin, *height)], colour.filled())
        }))?;
        if let Some(mark) = mark {
            chart.draw_series([PathElement::new(vec![(mark, 0.0), (mark, y_end)], AXIS)])?;
        }
        Ok(())
    })
}

/// Five numbers of a distribution, each at least the one before: 1st, 25th, 50th, 75th, 99th percentile.
pub type Spread = [f64; 5];

/// Boxes from the 25th to the 75th percentile with the median in them, and whiskers from the 1st to the 99th; `names`
/// below them.
pub fn boxes(frame: &Frame, names: &[String], spreads: &[Spread]) -> String {
    let y_end = frame.y_end.unwrap_or_else(|| most(spreads.iter().map(|spread| spread[4])) * 1.05);
    draw(frame, Axis::names(names), Axis::numbers(y_end), |chart| {
        for ((at, [low, quarter, half, three_quarters, high]), colour) in spreads.iter().enumerate().zip(SERIES.iter().cycle()) {
            let middle = place(at) + 0.5;
            let flat = |height: f64, reach: f64| {
                PathElement::new(vec![(middle - reach, height), (middle + reach, height)], colour.stroke_width(2))
            };
            chart.draw_series([
                PathElement::new(vec![(middle, *low), (middle, *high)], colour.stroke_width(2)),
                flat(*low, 0.12),
                flat(*high, 0.12),
                // Where quarters fall together, the box is still to be seen.
                flat(*half, 0.3),
            ])?;
            chart.draw_series([Rectangle::new(
                [(middle - 0.3, *quarter), (middle + 0.3, *three_quarters)],
                colour.mix(0.5).filled(),
            )])?;
        }
        Ok(())
    })
}

#[expect(clippy::cast_precision_loss, reason = "places on an axis are few")]
fn place(at: usize) -> f64 {
    at as f64
}

/// The largest, or 1 where there is nothing above zero.
fn most(values: impl Iterator<Item = f64>) -> f64 {
    let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
    if most > 0.0 { most } else { 1.0 }
}

/// Round numbers from zero to `end`: steps of 1, 2 or 5 times a power of ten.
fn ticks(end: f64) -> Vec<f64> {
    let rough = end / f64::from(MARKS);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(rough);
    (0..=2 * MARKS)
        .map(|at| f64::from(at) * step)
        .take_while(|tick| *tick <= end * 1.001)
        .collect()
}

/// A number without zeros that say nothing: `0.5`, `1,200`.
fn plain(value: f64) -> String {
    if value >= 1000.0 {
        return forebay_settings::text::count(value.round() as u64);
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Draws axes, then what is in them. Writing to a string can't fail; were it to, the plot would be left out.
fn draw(frame: &Frame, across: Axis, up: Axis, inside: impl FnOnce(&mut Chart<'_, '_>) -> Drawn) -> String {
    let mut svg = String::new();
    let drawn = || -> Drawn {
        let root = SVGBackend::with_string(&mut svg, frame.size).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin_top(14)
            .margin_left(6)
            .margin_right(26)
            .x_label_area_size(3 * TEXT_PX)
            .y_label_area_size(up.text_px())
            .build_cartesian_2d(across, up)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(AXIS)
            .label_style(("sans-serif", TEXT_PX))
            .axis_desc_style(("sans-serif", TEXT_PX))
            .x_desc(&frame.x_label)
            .y_desc(&frame.y_label)
            .draw()?;
        inside(&mut chart)?;
        root.present()
    };
    match drawn() {
        Ok(()) => svg,
        Err(error) => format!("<p>This plot could not be drawn: {error}.</p>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let words = |end| ticks(end).into_iter().map(plain).collect::<Vec<String>>().join(" ");
        assert_eq!(words(1.0), "0 0.2 0.4 0.6 0.8 1");
        assert_eq!(words(9.0), "0 2 4 6 8");
        assert_eq!(words(1234.0), "0 500 1,000");
        for end in [1e-6, 0.013, 0.99, 7.0, 110.0, 5e6] {
            assert!((3..=9).contains(&ticks(end).len()), "{end}: {:?}", ticks(end));
        }
    }

    #[test]
    fn plots_have_axes_labels_and_what_is_drawn() {
        let frame = Frame::new("cache (% of data)", "source bytes (% <of> data)");
        let names: Vec<String> = ["one", "two"].map(String::from).into();
        let line = PlotLine {
            name: "forebay".into(),
            colour: LIMIT,
            points: vec![(0.0, 100.0), (50.0, 50.0)],
        };
        let svgs = [
            lines(&frame, std::slice::from_ref(&line), &[6.0]),
            areas(&frame, &[line.clone(), line], &[25.0]),
            bars(&frame, &names, &[vec![1.0, 2.0], vec![0.5, 0.0]], &SERIES),
            histogram(&frame, 10.0, &[0.0, 3.0, 1.0], None),
            boxes(&frame, &names, &[[1.0, 2.0, 3.0, 4.0, 5.0], [1.0; 5]]),
            lines(&frame, &[], &[]),
            areas(&frame, &[], &[]),
            lanes(&frame, &[]),
        ];
        for svg in &svgs {
            assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
            assert!(svg.contains("cache (% of data)") && svg.contains("&lt;of&gt;"), "{svg}");
        }
        assert!(svgs[2].contains("two") && svgs[2].matches("#EE7733").count() >= 1);
    }

    #[test]
    fn lanes_lie_one_below_the_other() {
        let lane = |name: &str, begin, end, colour| Lane {
            name: name.into(),
            spans: vec![(begin, end, colour)],
        };
        let svg = lanes(
            &Frame::new("time (s)", ""),
            &[lane("one", 0.0, 2.0, SERIES[0]), lane("other", 2.0, 2.0, SERIES[1])],
        );
        let top_of = |name: &str| -> f64 {
            let (before, _) = svg.split_once(&format!("\n{name}\n")).unwrap();
            let (_, y) = before.rsplit_once(" y=\"").unwrap();
            y.split('"').next().unwrap().parse().unwrap()
        };
        assert!(top_of("one") < top_of("other"), "{svg}");
        // What takes no time is a line.
        assert!(svg.contains("#EE7733"), "{svg}");
    }

    #[test]
    fn areas_stand_one_upon_the_other() {
        let line = |colour, height| PlotLine {
            name: String::new(),
            colour,
            points: vec![(0.0, height), (10.0, height)],
        };
        let frame = Frame {
            y_end: Some(10.0),
            ..Frame::new("time (s)", "bytes (MiB)")
        };
        let svg = areas(&frame, &[line(SERIES[0], 2.0), line(SERIES[1], 5.0)], &[]);
        // The upper one is drawn first, at seven tenths of the height.
        let tops: Vec<i32> = svg
            .split("<polygon ")
            .skip(1)
            .map(|shape| {
                let points = shape.split_once("points=\"").unwrap().1;
                points.split([',', ' ']).nth(1).unwrap().parse().unwrap()
            })
            .collect();
        assert_eq!(tops.len(), 2);
        assert!(tops[0] < tops[1], "{tops:?}");
        assert!(svg.find("#EE7733").unwrap() < svg.find("#3377BB").unwrap());
    }
}
