//! Layer: shared / proto (being written).
