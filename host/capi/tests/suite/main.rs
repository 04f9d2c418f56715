//! Tests of the shared library as programs meet it: by its file, from C and C++.

mod programs;
mod hostile;
mod headers;
mod names;
mod fake;
mod states;
mod log;
mod cost;
