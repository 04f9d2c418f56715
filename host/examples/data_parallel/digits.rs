//! Pictures of digits: read from scikit-learn's file, or drawn.
//!
//! # The formula
//! A digit is drawn as on a seven-segment display, 5 pixels wide and 7 high. It stands up to 2 pixels from the left and up to 1
//! from the top. A lit segment is 7 to 10, a dark one 0 or 1, and every pixel has noise of 0 to 5.
//! All of this comes from one sequence of pseudo-random numbers, splitmix64 from seed 1797.

use std::error::Error;

/// Pixels of a picture.
pub const PIXELS: usize = 64;
/// As many as scikit-learn has.
const PICTURES: usize = 1797;

/// 8 rows of 8 pixels from 0 to 1, and what they show.
pub struct Picture {
    pub pixels: [f32; PIXELS],
    pub digit: usize,
}

/// Reads scikit-learn's digits.csv.
pub fn read(path: &str) -> Result<Vec<Picture>, Box<dyn Error>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let mut pictures = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = || format!("{path}, line {}: 64 pixels of 0 to 16 and a digit were expected", number + 1);
        let values: Result<Vec<f32>, _> = line.split(',').map(|value| value.trim().parse()).collect();
        let values = values.map_err(|_| wrong())?;
        let (pixels, digit) = values.split_first_chunk::<PIXELS>().ok_or_else(wrong)?;
        let [digit] = *digit else { return Err(wrong().into()) };
        if !(0.0..10.0).contains(&digit) || !pixels.iter().all(|pixel| (0.0..=16.0).contains(pixel)) {
            return Err(wrong().into());
        }
        pictures.push(Picture { pixels: pixels.map(|pixel| pixel / 16.0), digit: digit as usize });
    }
    if pictures.len() < 500 {
        return Err(format!("{path}: {} pictures are too few to train on", pictures.len()).into());
    }
    Ok(pictures)
}

/// Draws the pictures of the formula.
pub fn draw() -> Vec<Picture> {
    let mut random = Random(1797);
    (0..PICTURES).map(|number| draw_one(number % 10, &mut random)).collect()
}

fn draw_one(digit: usize, random: &mut Random) -> Picture {
    /// Lit segments of 0 to 9: top, upper left, upper right, middle, lower left, lower right, bottom.
    const SEGMENTS: [u8; 10] = [0x77, 0x24, 0x5d, 0x6d, 0x2e, 0x6b, 0x7b, 0x25, 0x7f, 0x6f];
    /// Column and row of the first pixel, and how many follow to the right and downward.
    const STROKES: [(usize, usize, usize, usize); 7] =
        [(1, 0, 3, 1), (0, 1, 1, 2), (4, 1, 1, 2), (1, 3, 3, 1), (0, 4, 1, 2), (4, 4, 1, 2), (1, 6, 3, 1)];
    let (left, top) = (random.below(3), random.below(2));
    let mut pixels = [0f32; PIXELS];
    for (segment, (x, y, width, height)) in STROKES.into_iter().enumerate() {
        let lit = SEGMENTS[digit] >> segment & 1 == 1;
        let strength = if lit { 7 + random.below(4) } else { random.below(2) };
        for (dx, dy) in (0..width).flat_map(|dx| (0..height).map(move |dy| (dx, dy))) {
            pixels[(top + y + dy) * 8 + left + x + dx] = strength as f32;
        }
    }
    let pixels = pixels.map(|pixel| (pixel + random.below(6) as f32) / 16.0);
    Picture { pixels, digit }
}

/// The numbers below `len` in an order that depends on `seed` only (Fisher and Yates).
pub fn shuffled(len: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed);
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        order.swap(last, random.below(last + 1));
    }
    order
}

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `bound` - 1.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.word()) * bound as u128) >> 64) as usize
    }

    /// -1 to 1.
    pub fn signed(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
