//! The devices by which a rank's connections go: pure.

/// Devices by channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Devices {
    /// Of all connections that have none of their own.
    pub own: u32,
    /// Of the channels of rings, which come first: those by which each comes and leaves. They repeat.
    pub rings: Vec<[u32; 2]>,
    /// Channels of rings.
    pub ring_channels: u32,
}

impl Devices {
    /// The device of a channel of the proxy, in one direction.
    pub fn of(&self, channel: u32, is_send: bool) -> u32 {
        match self.rings.len() {
            0 => self.own,
            rings if channel < self.ring_channels => {
                self.rings[channel as usize % rings][usize::from(is_send)]
            }
            _ => self.own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_have_devices_of_their_own_and_others_the_ranks() {
        let devices = Devices { own: 7, rings: vec![[0, 1], [2, 3]], ring_channels: 3 };
        let of = |is_send| (0..4).map(|channel| devices.of(channel, is_send)).collect::<Vec<_>>();
        assert_eq!((of(false), of(true)), (vec![0, 2, 0, 7], vec![1, 3, 1, 7]));
        assert_eq!(Devices { rings: Vec::new(), ..devices }.of(0, true), 7);
    }
}
