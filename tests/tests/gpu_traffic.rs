//! What ranks on GPUs count for each peer, as a program reads it.
//!
//! They run over a driver without a GPU, in a process of its own.

use oxccl::cuda::{Capture, DeviceMemory, Stream};
use oxccl::{
    Config, DeviceCommunicator, DeviceGroup, DeviceSlice, DeviceSliceMut, Error, ReduceOp, device_group,
};
use oxccl_tests::fake_driver::FakeDriver;
use std::process::Command;

const CHILD: &str = "OXCCL_TEST_GPU_TRAFFIC";

struct Rank {
    comm: DeviceCommunicator,
    stream: Stream,
    memory: DeviceMemory,
}

impl Rank {
    fn all_reduce<'env>(&'env self, group: &mut DeviceGroup<'env>, count: usize) -> Result<(), Error> {
        // SAFETY: (1, 2) the memory is longer, the driver's kernels do nothing with it; it and the stream live on.
        unsafe {
            let buffer = DeviceSliceMut::<f32>::from_raw(self.memory.address(), count);
            group.all_reduce_in_place(&self.comm, buffer, ReduceOp::SUM, self.stream.by_ref())
        }
    }

    /// To rank 1, from rank 0.
    fn message<'env>(&'env self, group: &mut DeviceGroup<'env>, count: usize) -> Result<(), Error> {
        let (comm, stream) = (&self.comm, self.stream.by_ref());
        // SAFETY: (1, 2) as above.
        unsafe {
            match comm.rank() {
                0 => group.send(comm, DeviceSlice::<f32>::from_raw(self.memory.address(), count), 1, stream),
                _ => {
                    group.recv(comm, DeviceSliceMut::<f32>::from_raw(self.memory.address(), count), 0, stream)
                }
            }
        }
    }

    /// Operations, bytes sent and bytes received, of the other rank.
    fn counted(&self) -> (u64, u64, u64) {
        let peers = self.comm.handle().report(0).peers;
        let of_peer = |peer: &oxccl::status::PeerReport| {
            assert_eq!((peer.rank, peer.sent_slots, peer.received_slots), (1 - self.comm.rank(), 0, 0));
            (peer.operations, peer.sent_bytes, peer.received_bytes)
        };
        peers.first().map(of_peer).unwrap_or_default()
    }
}

/// All ranks make the calls.
fn made(ranks: &[Rank], calls: for<'env> fn(&'env Rank, &mut DeviceGroup<'env>) -> Result<(), Error>) {
    let made = device_group(|group| ranks.iter().try_for_each(|rank| calls(rank, group)));
    made.unwrap_or_else(|error| panic!("{error}"));
}

fn count() {
    let config = Config::from_env().expect("a valid environment");
    let comms = DeviceCommunicator::init_all_with(&[0, 1], &config).expect("two ranks");
    let rank = |comm: DeviceCommunicator| {
        let stream = Stream::new(comm.device()).expect("a stream");
        let memory = DeviceMemory::zeroed(comm.device(), 1 << 20).expect("memory");
        Rank { comm, stream, memory }
    };
    let ranks: Vec<Rank> = comms.into_iter().map(rank).collect();
    let counted = || [ranks[0].counted(), ranks[1].counted()];
    assert_eq!(counted(), [(0, 0, 0); 2], "what nobody has met is not listed");
    // Between two ranks, all of the buffer goes each way, whatever the algorithm.
    (0..3).for_each(|_| made(&ranks, |rank, group| rank.all_reduce(group, 16)));
    assert_eq!(counted(), [(3, 192, 192); 2]);
    made(&ranks, |rank, group| rank.message(group, 100));
    assert_eq!(counted(), [(4, 592, 192), (4, 192, 592)]);
    // A group of both.
    (0..2).for_each(|_| {
        made(&ranks, |rank, group| {
            rank.all_reduce(group, 1000)?;
            rank.message(group, 10)
        });
    });
    assert_eq!(counted(), [(8, 8672, 8192), (8, 8192, 8672)]);
    // A capture moves nothing, and how often what was captured is launched nobody tells.
    let capture = |rank: &Rank| {
        let capture = Capture::begin(rank.stream.by_ref(), true).expect("a capture");
        made(std::slice::from_ref(rank), |rank, group| rank.all_reduce(group, 5000));
        capture.end().expect("a graph")
    };
    let graphs: Vec<_> = ranks.iter().map(capture).collect();
    assert_eq!(counted(), [(8, 8672, 8192), (8, 8192, 8672)]);
    drop(graphs);
    made(&ranks, |rank, group| rank.all_reduce(group, 5000));
    assert_eq!(counted(), [(9, 28672, 28192), (9, 28192, 28672)]);
}

#[test]
fn gpus_count_operations_and_bytes_by_peer() {
    if std::env::var_os(CHILD).is_some() {
        return count();
    }
    let folder = tempfile::tempdir().unwrap();
    let driver = FakeDriver::make(folder.path());
    let bundle = driver.kernels(true);
    let mut child = Command::new(std::env::current_exe().unwrap());
    let test = "gpu_traffic::gpus_count_operations_and_bytes_by_peer";
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    let output = driver.under(&mut child).env("OXCCL_PTX_PATH", bundle).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{said}");
}
