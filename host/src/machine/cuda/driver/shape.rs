//! How many blocks of how many threads a launch has, and what the driver is told besides.

use super::api::LaunchAttribute;

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`: numbers of blocks in x, y and z.
const CLUSTER_DIMENSION: u32 = 4;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;
const NONE: LaunchAttribute = LaunchAttribute { id: 0, padding: [0; 4], value: 0, rest: [0; 60] };

/// A launch's blocks and threads, all in x.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// So many blocks that follow each other start together, on neighbouring multiprocessors; a divisor of their number. 1: each by itself.
    pub cluster: u32,
}

impl Shape {
    /// So many blocks, each by itself, without dynamic shared memory.
    pub const fn new(blocks: u32, threads: u32) -> Shape {
        Shape { blocks, threads, shared_bytes: 0, cluster: 1 }
    }

    pub(super) fn alone(self) -> Shape {
        Shape { cluster: 1, ..self }
    }

    /// The attributes of a launch, and their number. `early`: it may start before the kernel in front of it has ended.
    pub(super) fn attributes(&self, early: bool) -> ([LaunchAttribute; 2], u32) {
        let (mut attributes, mut count) = ([NONE; 2], 0);
        if self.cluster > 1 {
            let mut rest = [0; 60];
            rest[..4].copy_from_slice(&1u32.to_ne_bytes());
            rest[4..8].copy_from_slice(&1u32.to_ne_bytes());
            attributes[count] =
                LaunchAttribute { id: CLUSTER_DIMENSION, value: self.cluster as i32, rest, ..NONE };
            count += 1;
        }
        if early {
            attributes[count] = LaunchAttribute { id: PROGRAMMATIC_STREAM_SERIALIZATION, value: 1, ..NONE };
            count += 1;
        }
        (attributes, count as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_from_an_ordinary_launch_is_said() {
        let ids = |shape: Shape, early| {
            let (attributes, count) = shape.attributes(early);
            attributes[..count as usize].iter().map(|said| (said.id, said.value)).collect::<Vec<_>>()
        };
        let (alone, four) = (Shape::new(24, 512), Shape { cluster: 4, ..Shape::new(24, 512) });
        assert_eq!(ids(alone, false), []);
        assert_eq!(ids(alone, true), [(6, 1)]);
        assert_eq!(ids(four, false), [(4, 4)]);
        assert_eq!(ids(four, true), [(4, 4), (6, 1)]);
        assert_eq!(ids(four.alone(), false), []);
        // A cluster has one block in y and in z.
        assert_eq!(four.attributes(false).0[0].rest[..8], [1u32.to_ne_bytes(), 1u32.to_ne_bytes()].concat());
    }
}
