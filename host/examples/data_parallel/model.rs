//! A perceptron with one hidden layer, its parameters and its gradient each in one slice: what is sent between ranks is simply that
//! slice. Nothing here knows of ranks.

use crate::digits::{PIXELS, Picture, Random};

const HIDDEN: usize = 32;
const DIGITS: usize = 10;
/// Weights and biases of both layers.
pub const PARAMETERS: usize = HIDDEN * (PIXELS + 1) + DIGITS * (HIDDEN + 1);

#[derive(Clone)]
/// hidden = tanh(W1 pixels + b1), scores = W2 hidden + b2.
pub struct Model {
    parameters: Vec<f32>,
}

/// Where each part lies in the one slice.
struct Parts<'a> {
    w1: &'a [f32],
    b1: &'a [f32],
    w2: &'a [f32],
    b2: &'a [f32],
}

impl Model {
    /// Weights drawn evenly from -1/sqrt(inputs) to 1/sqrt(inputs).
    pub fn random(seed: u64) -> Model {
        let mut random = Random(seed);
        let mut parameters = vec![0f32; PARAMETERS];
        let (first, second) = parameters.split_at_mut(HIDDEN * (PIXELS + 1));
        first.fill_with(|| random.signed() / (PIXELS as f32).sqrt());
        second.fill_with(|| random.signed() / (HIDDEN as f32).sqrt());
        Model { parameters }
    }

    pub fn parameters_mut(&mut self) -> &mut [f32] {
        &mut self.parameters
    }

    /// What the model takes the picture for.
    pub fn digit(&self, picture: &Picture) -> usize {
        let (_, scores) = self.forward(picture);
        (0..DIGITS).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap_or(0)
    }

    /// Writes the mean gradient over `pictures` and returns their mean loss (cross entropy).
    pub fn gradient<'a>(
        &self,
        pictures: impl ExactSizeIterator<Item = &'a Picture>,
        into: &mut [f32],
    ) -> f64 {
        into.fill(0.0);
        let scale = 1.0 / pictures.len() as f32;
        let mut loss = 0f64;
        for picture in pictures {
            let (hidden, scores) = self.forward(picture);
            let (chances, picture_loss) = softmax(&scores, picture.digit);
            loss += f64::from(picture_loss * scale);
            let mut errors = chances.map(|chance| chance * scale);
            errors[picture.digit] -= scale;
            self.backward(picture, &hidden, &errors, into);
        }
        loss
    }

    /// One step against the gradient.
    pub fn descend(&mut self, gradient: &[f32], rate: f32) {
        for (parameter, slope) in self.parameters.iter_mut().zip(gradient) {
            *parameter -= rate * slope;
        }
    }

    fn parts(&self) -> Parts<'_> {
        let (w1, rest) = self.parameters.split_at(HIDDEN * PIXELS);
        let (b1, rest) = rest.split_at(HIDDEN);
        let (w2, b2) = rest.split_at(DIGITS * HIDDEN);
        Parts { w1, b1, w2, b2 }
    }

    fn forward(&self, picture: &Picture) -> ([f32; HIDDEN], [f32; DIGITS]) {
        let Parts { w1, b1, w2, b2 } = self.parts();
        let hidden = std::array::from_fn(|h| (b1[h] + dot(&w1[h * PIXELS..], &picture.pixels)).tanh());
        let scores = std::array::from_fn(|d| b2[d] + dot(&w2[d * HIDDEN..], &hidden));
        (hidden, scores)
    }

    /// Adds one picture's gradient. `errors` is the loss's slope by each score.
    fn backward(&self, picture: &Picture, hidden: &[f32; HIDDEN], errors: &[f32; DIGITS], into: &mut [f32]) {
        let w2 = self.parts().w2;
        let (g1, rest) = into.split_at_mut(HIDDEN * PIXELS);
        let (gb1, rest) = rest.split_at_mut(HIDDEN);
        let (g2, gb2) = rest.split_at_mut(DIGITS * HIDDEN);
        for (d, error) in errors.iter().enumerate() {
            gb2[d] += error;
            add_scaled(&mut g2[d * HIDDEN..][..HIDDEN], hidden, *error);
        }
        for (h, value) in hidden.iter().enumerate() {
            let reached: f32 = (0..DIGITS).map(|d| errors[d] * w2[d * HIDDEN + h]).sum();
            let error = reached * (1.0 - value * value);
            gb1[h] += error;
            add_scaled(&mut g1[h * PIXELS..][..PIXELS], &picture.pixels, error);
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add_scaled(sum: &mut [f32], values: &[f32], scale: f32) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += scale * value;
    }
}

/// The chance of each digit, and the loss if the right one is `digit`.
fn softmax(scores: &[f32; DIGITS], digit: usize) -> ([f32; DIGITS], f32) {
    let most = scores.iter().copied().fold(f32::MIN, f32::max);
    let weights = scores.map(|score| (score - most).exp());
    let sum: f32 = weights.iter().sum();
    (weights.map(|weight| weight / sum), sum.ln() - (scores[digit] - most))
}
