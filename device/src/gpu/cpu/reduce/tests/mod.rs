//! Every machine against the scalar functions, bit by bit; and the speed.

mod bits;
mod speed;
