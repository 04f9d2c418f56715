//! Operations in flight: started, and waited for later or never.

mod order;
mod several;
mod owned;
mod random;
mod faults;
