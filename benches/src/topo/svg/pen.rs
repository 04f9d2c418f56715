//! Layer: topo / svg.
//! Takes: shapes in points.
//! Gives: [`Pen`], which collects them as SVG elements in the picture's few colours.
//! Never: what they mean.

use oxccl::topology::system::LinkKind;
use svg::node::element::path::Data;
use svg::node::element::{Circle, Definitions, Group, LinearGradient, Path, Rectangle, Stop, Text};
use svg::{Document, Node};

/// What a shape is, which gives its colour.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Ink {
    Text,
    Quiet,
    Light,
    Guide,
    Panel,
    Cpu,
    Switch,
    Gpu,
    Nic,
    NvSwitch,
    Link(LinkKind),
    /// Of a channel, by number.
    Lane(usize),
}

/// Which side of a text its position is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text is set.
#[derive(Clone, Copy, Debug)]
pub struct Font {
    size: f64,
    ink: Ink,
    anchor: Anchor,
    is_bold: bool,
}

impl Font {
    pub fn plain(size: f64, ink: Ink, anchor: Anchor) -> Font {
        Font { size, ink, anchor, is_bold: false }
    }

    pub fn bold(size: f64, ink: Ink, anchor: Anchor) -> Font {
        Font { size, ink, anchor, is_bold: true }
    }
}

const LANES: [&str; 10] = [
    "#2563eb", "#db2777", "#0d9488", "#ea580c", "#7c3aed", "#ca8a04", "#0284c7", "#dc2626", "#4d7c0f",
    "#9333ea",
];

impl Ink {
    fn color(self) -> &'static str {
        match self {
            Ink::Text => "#1c2430",
            Ink::Quiet => "#6a7280",
            Ink::Light => "#ffffff",
            Ink::Guide => "#e4e0d6",
            Ink::Panel => "#fffdf9",
            Ink::Cpu => "url(#cpu)",
            Ink::Switch => "#dfe4ec",
            Ink::Gpu => "url(#gpu)",
            Ink::Nic => "url(#nic)",
            Ink::NvSwitch => "url(#nvswitch)",
            Ink::Link(LinkKind::NvLink) => "#3f9142",
            Ink::Link(LinkKind::Pci | LinkKind::Loc) => "#8793a6",
            Ink::Link(LinkKind::C2c) => "#7c3aed",
            Ink::Link(LinkKind::Sys) => "#b4533a",
            Ink::Link(LinkKind::Net) => "#d97706",
            Ink::Lane(number) => LANES[number % LANES.len()],
        }
    }
}

/// Elements in the order in which they are drawn.
pub struct Pen {
    group: Group,
}

impl Pen {
    pub fn new() -> Pen {
        Pen { group: Group::new() }
    }

    pub fn append(&mut self, other: Pen) {
        self.group.append(other.group);
    }

    /// A box with round corners, `x` in its middle.
    pub fn bar(&mut self, x: f64, y: f64, size: [f64; 2], round: f64, ink: Ink) {
        let shape = Rectangle::new()
            .set("x", tenths(x - size[0] / 2.0))
            .set("y", tenths(y))
            .set("width", tenths(size[0]))
            .set("height", tenths(size[1]))
            .set("rx", round)
            .set("fill", ink.color());
        let shape =
            if ink == Ink::Switch || ink == Ink::Panel { shape.set("stroke", "#c3cad6") } else { shape };
        self.group.append(shape);
    }

    pub fn text(&mut self, at: [f64; 2], text: &str, font: Font) {
        let anchor = match font.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = Text::new(text)
            .set("x", tenths(at[0]))
            .set("y", tenths(at[1]))
            .set("font-size", font.size)
            .set("text-anchor", anchor)
            .set("fill", font.ink.color());
        self.group.append(if font.is_bold { text.set("font-weight", "bold") } else { text });
    }

    pub fn line(&mut self, from: [f64; 2], to: [f64; 2], ink: Ink, width: f64) {
        let data = Data::new().move_to(point(from)).line_to(point(to));
        self.stroke(data, ink, width, false);
    }

    /// From one point to another in an arc as high as `rise` (below them if negative).
    pub fn arc(&mut self, from: [f64; 2], to: [f64; 2], rise: f64, ink: Ink, width: f64, dashed: bool) {
        // A cubic's top lies at three quarters of its control points' height.
        let (a, b) = ([from[0], from[1] - rise / 0.75], [to[0], to[1] - rise / 0.75]);
        let ((ax, ay), (bx, by), (x, y)) = (point(a), point(b), point(to));
        let data = Data::new().move_to(point(from)).cubic_curve_to((ax, ay, bx, by, x, y));
        self.stroke(data, ink, width, dashed);
    }

    fn stroke(&mut self, data: Data, ink: Ink, width: f64, dashed: bool) {
        let path = Path::new()
            .set("d", data)
            .set("fill", "none")
            .set("stroke", ink.color())
            .set("stroke-width", tenths(width))
            .set("stroke-linecap", "round");
        self.group.append(if dashed { path.set("stroke-dasharray", "5 5") } else { path });
    }

    /// A triangle pointing to the right (`1`) or to the left (`-1`).
    pub fn arrow(&mut self, at: [f64; 2], direction: f64, ink: Ink) {
        let [x, y] = at;
        let data = Data::new()
            .move_to(point([x + 5.0 * direction, y]))
            .line_to(point([x - 3.5 * direction, y - 4.5]))
            .line_to(point([x - 3.5 * direction, y + 4.5]))
            .close();
        self.group.append(Path::new().set("d", data).set("fill", ink.color()));
    }

    pub fn dot(&mut self, at: [f64; 2], radius: f64, fill: Ink, edge: Ink) {
        self.group.append(
            Circle::new()
                .set("cx", tenths(at[0]))
                .set("cy", tenths(at[1]))
                .set("r", radius)
                .set("fill", fill.color())
                .set("stroke", edge.color())
                .set("stroke-width", 2),
        );
    }

    /// A number on a link, legible on whatever lies below it.
    pub fn tag(&mut self, x: f64, y: f64, text: &str, ink: Ink) {
        let width = 6.3 * text.chars().count() as f64 + 10.0;
        self.bar(x, y - 8.5, [width, 17.0], 8.5, Ink::Panel);
        self.text([x, y + 3.8], text, Font::bold(10.5, ink, Anchor::Middle));
    }

    /// The finished picture.
    pub fn page(self, width: f64, height: f64) -> String {
        let paper = Rectangle::new().set("width", width).set("height", height).set("fill", "#f7f4ed");
        let document = Document::new()
            .set("viewBox", (0, 0, width.ceil() as u32, height.ceil() as u32))
            .set("width", width.ceil())
            .set("height", height.ceil())
            .set("font-family", "Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif")
            .add(gradients())
            .add(paper)
            .add(self.group);
        document.to_string()
    }
}

fn gradients() -> Definitions {
    let gradient = |id: &str, top: &str, bottom: &str| {
        let stop = |offset: f64, color: &str| Stop::new().set("offset", offset).set("stop-color", color);
        LinearGradient::new()
            .set("id", id)
            .set("x2", 0)
            .set("y2", 1)
            .add(stop(0.0, top))
            .add(stop(1.0, bottom))
    };
    Definitions::new()
        .add(gradient("cpu", "#3d4c66", "#2a3549"))
        .add(gradient("gpu", "#6fb83f", "#43902a"))
        .add(gradient("nic", "#f6c766", "#e9a23b"))
        .add(gradient("nvswitch", "#2f8f83", "#1d6b64"))
}

fn point(at: [f64; 2]) -> (f64, f64) {
    (tenths(at[0]), tenths(at[1]))
}

/// Positions need no more digits.
fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
