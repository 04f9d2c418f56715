//! Time and bus bandwidth over size: one line per engine, place, type, operator and root, its spread as a band of thin lines, both
//! axes logarithmic.

use super::facts::{ReportError, Run};
use super::files;
use crate::out::Outputs;
use crate::row::Row;
use oxccl_shared::abi::{DataType, RedOp};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (900, 1000);
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 90, 180), RGBColor(210, 90, 0), RGBColor(90, 90, 90), RGBColor(0, 130, 80)];
/// More lines than these are drawn, but only so many named.
const NAMED_MAX: usize = 16;

/// What a line is of, beside the engine.
type Kind = (DataType, Option<RedOp>, Option<u32>);

/// One engine in one place on one kind of call: (bytes, median, least, greatest).
struct Line {
    label: String,
    colour: RGBColor,
    points: Vec<[f64; 4]>,
}

pub fn write(outputs: &mut Outputs, path: &Path, run: &Run<'_>, rows: &[Row]) -> Result<(), ReportError> {
    let mut svg = String::new();
    draw(&mut svg, run, rows).map_err(|error| ReportError::Draw(error.to_string()))?;
    files::write(outputs, path, &svg)
}

fn draw(svg: &mut String, run: &Run<'_>, rows: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title =
        format!("{}, {} ranks, {}", run.collective.name(), run.ranks, run.machine.device_or_processor());
    let (upper, lower) = root.titled(&title, ("sans-serif", 22))?.split_vertically(SIZE.1 / 2 - 15);
    let times = lines(run, rows, |_, seconds| seconds * 1e6);
    chart(&upper, "time per operation (us)", &times)?;
    // A link that carries nothing has no place on a logarithmic axis: one rank has time only.
    let bandwidths = lines(run, rows, |row, seconds| row.bandwidths(run, seconds).1);
    chart(&lower, "bus bandwidth (GB/s)", &bandwidths)?;
    root.present()?;
    Ok(())
}

fn lines(run: &Run<'_>, rows: &[Row], value: impl Fn(&Row, f64) -> f64) -> Vec<Line> {
    let mut lines = Vec::new();
    let kinds = kinds(rows);
    let each = kinds.iter().flat_map(|kind| (0..run.engines.len()).map(move |at| (kind, at)));
    for (&kind, at) in each {
        for in_place in [false, true] {
            let point = |row: &Row| {
                let measured = row.measured(at, in_place)?;
                let values =
                    [measured.median(), measured.min(), measured.max()].map(|seconds| value(row, seconds));
                let drawn = row.bytes > 0 && values.iter().all(|v| *v > 0.0);
                drawn.then_some([row.bytes as f64, values[0], values[1], values[2]])
            };
            let points: Vec<[f64; 4]> =
                rows.iter().filter(|row| kind_of(row) == kind).filter_map(point).collect();
            let place = if in_place { ", in place" } else { "" };
            if !points.is_empty() {
                let label = format!("{}{}{place}", run.engines[at].name, differs(kind, &kinds));
                lines.push(Line { label, colour: COLOURS[0], points });
            }
        }
    }
    let count = lines.len();
    for (at, line) in lines.iter_mut().enumerate() {
        line.colour = colour(at, count);
        if at + 1 == NAMED_MAX && count > NAMED_MAX {
            line.label += &format!(" (and {} more)", count - NAMED_MAX);
        }
    }
    lines
}

fn kind_of(row: &Row) -> Kind {
    (row.dtype, row.op, row.root)
}

/// The kinds of call in the order of their coming.
fn kinds(rows: &[Row]) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for kind in rows.iter().map(kind_of) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// The parts of `kind` that tell it from the others.
fn differs(kind: Kind, all: &[Kind]) -> String {
    let mut text = String::new();
    if all.iter().any(|other| other.0 != kind.0) {
        text += &format!(" {}", kind.0);
    }
    if let Some(op) = kind.1.filter(|_| all.iter().any(|other| other.1 != kind.1)) {
        text += &format!(" {op}");
    }
    if let Some(root) = kind.2.filter(|_| all.iter().any(|other| other.2 != kind.2)) {
        text += &format!(" root {root}");
    }
    text
}

/// Few lines have colours that are far apart in print too; more go round the circle of colours.
fn colour(at: usize, count: usize) -> RGBColor {
    if count <= COLOURS.len() {
        return COLOURS[at];
    }
    let (red, green, blue) = HSLColor(at as f64 / count as f64, 0.8, 0.4).rgb();
    RGBColor(red, green, blue)
}

fn chart(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    what: &str,
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error>> {
    let sizes = lines.iter().flat_map(|line| line.points.iter().map(|point| point[0]));
    let values = lines.iter().flat_map(|line| line.points.iter().flat_map(|point| point[1..].to_vec()));
    let (Some((from, to)), Some((low, high))) = (span(sizes), span(values)) else { return Ok(()) };
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(45)
        .y_label_area_size(75)
        .build_cartesian_2d((from..to * 1.2).log_scale().base(2.0), (low / 1.3..high * 1.3).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("size (bytes)")
        .y_desc(what)
        .axis_desc_style(("sans-serif", 16))
        .label_style(("sans-serif", 13))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(220, 220, 220))
        .x_label_formatter(&|size| bytes(*size))
        .y_label_formatter(&|value| number(*value))
        .draw()?;
    for (at, Line { label, colour, points }) in lines.iter().enumerate() {
        let (colour, through) = (*colour, |at: usize| points.iter().map(move |point| (point[0], point[at])));
        for edge in [2, 3] {
            chart.draw_series(LineSeries::new(through(edge), colour.mix(0.35)))?;
        }
        let drawn = chart.draw_series(LineSeries::new(through(1), colour.stroke_width(2)).point_size(3))?;
        if at < NAMED_MAX {
            drawn
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 15))
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    Ok(())
}

fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |span, value| {
        let (low, high) = span.unwrap_or((value, value));
        Some((f64::min(low, value), f64::max(high, value)))
    })
}

/// A power of two as people say it.
fn bytes(size: f64) -> String {
    match size {
        size if size >= f64::from(1 << 30) => format!("{}G", number(size / f64::from(1 << 30))),
        size if size >= f64::from(1 << 20) => format!("{}M", number(size / f64::from(1 << 20))),
        size if size >= f64::from(1 << 10) => format!("{}K", number(size / f64::from(1 << 10))),
        size => number(size),
    }
}

fn number(value: f64) -> String {
    if value > 0.0 && value < 0.01 {
        return format!("{value:.0e}");
    }
    let decimals = if value >= 10.0 { 0 } else { 2 };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        assert_eq!((bytes(8.0).as_str(), bytes(65536.0).as_str()), ("8", "64K"));
        assert_eq!((number(0.5).as_str(), number(1000.0).as_str()), ("0.5", "1000"));
        // Ticks of a logarithmic axis stay apart.
        assert_eq!([0.01, 0.001, 0.0001].map(number), ["0.01", "1e-3", "1e-4"]);
        assert_eq!(span([3.0, 1.0, 2.0].into_iter()), Some((1.0, 3.0)));
    }
    #[test]
    fn every_kind_of_call_has_a_line_of_its_own() {
        let row = |dtype, op, root| Row { bytes: 8, count: 2, dtype, op, root, cells: Vec::new() };
        let (sum, max) = (Some(RedOp::Sum), Some(RedOp::Max));
        let rows =
            [row(DataType::F32, sum, None), row(DataType::F32, max, None), row(DataType::F32, sum, None)];
        let both = kinds(&rows);
        assert_eq!(both, [(DataType::F32, sum, None), (DataType::F32, max, None)]);
        assert_eq!(differs(both[1], &both), " max");
        assert_eq!(differs(both[0], &both[..1]), "");
        let rooted = kinds(&[row(DataType::I8, None, Some(0)), row(DataType::F64, None, Some(3))]);
        assert_eq!(differs(rooted[1], &rooted), " double root 3");
        let colours: Vec<_> = (0..40).map(|at| colour(at, 40)).collect();
        assert!((1..40).all(|at| !colours[..at].contains(&colours[at])), "{colours:?}");
    }
}
