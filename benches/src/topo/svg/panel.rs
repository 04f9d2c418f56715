//! Layer: topo / svg.
//! Takes: a title and what is said beside it.
//! Gives: the frame of a part of the picture that is as wide as the picture.
//! Never: what is within.

use super::layout::Layout;
use super::pen::{Anchor, Font, Ink, Pen};

/// From the upper edge to what is within.
pub const TITLE_HEIGHT: f64 = 44.0;
/// Where texts within begin.
pub const LEFT: f64 = MARGIN + PADDING;
const MARGIN: f64 = 40.0;
const PADDING: f64 = 22.0;
/// Between two panels.
const GAP: f64 = 26.0;

/// From where to where it reaches.
pub struct Panel {
    pub top: f64,
    pub height: f64,
}

impl Panel {
    /// The frame, with a title on the left and facts on the right.
    pub fn draw(&self, pen: &mut Pen, layout: &Layout, title: &str, facts: &str) {
        let Panel { top, height } = *self;
        pen.bar(layout.width / 2.0, top, [layout.width - 2.0 * MARGIN, height], 16.0, Ink::Panel);
        pen.text([LEFT, top + 29.0], title, Font::bold(17.0, Ink::Text, Anchor::Start));
        let right = layout.width - LEFT;
        pen.text([right, top + 28.0], facts, Font::plain(13.0, Ink::Quiet, Anchor::End));
    }

    /// Where the next one begins.
    pub fn next(&self) -> f64 {
        self.top + self.height + GAP
    }
}
