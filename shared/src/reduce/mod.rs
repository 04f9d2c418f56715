//! Layer: shared / reduce (being written).
