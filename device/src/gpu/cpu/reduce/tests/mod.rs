//! Every machine against the scalar functions, bit by bit; and how fast it goes.

mod bits;
mod speed;
