//! Layer: shared / algo (being written).
