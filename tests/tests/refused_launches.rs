//! Launches that the driver refuses, and that the program repeats or does not: what ranks on GPUs count, and compare when they finalize.
//!
//! The program runs over a driver without a GPU, in a process of its own. The driver refuses what it is told to, and its kernels do nothing.

use oxccl::cuda::{DeviceMemory, Stream};
use oxccl::{
    Config, DeviceCommunicator, DeviceGroup, DeviceSlice, DeviceSliceMut, Error, Fault, ReduceOp,
    device_group,
};
use oxccl_tests::fake_driver::FakeDriver;
use std::process::Command;

const CHILD: &str = "OXCCL_TEST_REFUSED";
const BYTES: usize = 1 << 20;

/// A rank with a stream and a buffer.
struct Rank {
    comm: DeviceCommunicator,
    stream: Stream,
    memory: DeviceMemory,
}

/// Two ranks that have made a collective, and sent a message each way.
fn ranks() -> Vec<Rank> {
    let config = Config::from_env().expect("a valid environment");
    let comms = DeviceCommunicator::init_all_with(&[0, 1], &config).expect("two ranks");
    let rank = |comm: DeviceCommunicator| {
        let stream = Stream::new(comm.device()).expect("a stream");
        let memory = DeviceMemory::zeroed(comm.device(), BYTES).expect("memory");
        Rank { comm, stream, memory }
    };
    let two: Vec<Rank> = comms.into_iter().map(rank).collect();
    // What they need is there then.
    let warm = device_group(|group| {
        two.iter().try_for_each(|rank| {
            rank.all_reduce(group, 8)?;
            rank.exchange(group)
        })
    });
    warm.unwrap_or_else(|error| panic!("{error}"));
    two
}

impl Rank {
    fn buffer(&self, count: usize) -> DeviceSliceMut<'_, f32> {
        // SAFETY: (1) the memory is longer, and the driver's kernels do nothing with it.
        unsafe { DeviceSliceMut::from_raw(self.memory.address(), count) }
    }

    fn other(&self) -> u32 {
        1 - self.comm.rank()
    }

    fn all_reduce<'env>(&'env self, group: &mut DeviceGroup<'env>, count: usize) -> Result<(), Error> {
        // SAFETY: (1, 2) as above; the stream lives as long as the rank.
        unsafe {
            group.all_reduce_in_place(&self.comm, self.buffer(count), ReduceOp::SUM, self.stream.by_ref())
        }
    }

    fn send<'env>(&'env self, group: &mut DeviceGroup<'env>, count: usize) -> Result<(), Error> {
        // SAFETY: (1) as above.
        let sent = unsafe { DeviceSlice::<f32>::from_raw(self.memory.address(), count) };
        // SAFETY: (1, 2) as above.
        unsafe { group.send(&self.comm, sent, self.other(), self.stream.by_ref()) }
    }

    fn recv<'env>(&'env self, group: &mut DeviceGroup<'env>, count: usize) -> Result<(), Error> {
        // SAFETY: (1, 2) as above.
        unsafe { group.recv(&self.comm, self.buffer(count), self.other(), self.stream.by_ref()) }
    }

    fn barrier<'env>(&'env self, group: &mut DeviceGroup<'env>) -> Result<(), Error> {
        group.barrier(&self.comm, self.stream.by_ref())
    }

    fn exchange<'env>(&'env self, group: &mut DeviceGroup<'env>) -> Result<(), Error> {
        self.send(group, 4)?;
        self.recv(group, 4)
    }
}

/// The next launches: `x` is refused.
fn next_launches(letters: &str) {
    std::fs::write(std::env::var_os("FAKE_REFUSE").expect("a file"), letters).expect("letters");
}

/// What each rank hears when it finalizes.
fn finalize(two: Vec<Rank>) -> Vec<Option<Error>> {
    let end = |rank: Rank| rank.comm.finalize().err();
    let threads: Vec<_> = two.into_iter().map(|rank| std::thread::spawn(move || end(rank))).collect();
    threads.into_iter().map(|thread| thread.join().expect("a finalize")).collect()
}

/// One rank's calls.
type Calls = for<'env> fn(&'env Rank, &mut DeviceGroup<'env>) -> Result<(), Error>;

fn made(rank: &Rank, calls: Calls) -> Result<(), Error> {
    device_group(|group| calls(rank, group))
}

/// Each refused for rank 0, and repeated.
fn repeated() {
    let calls: [Calls; 4] = [
        |rank, group| rank.all_reduce(group, 16),
        |rank, group| if rank.comm.rank() == 0 { rank.send(group, 8) } else { rank.recv(group, 8) },
        |rank, group| rank.exchange(group),
        |rank, group| rank.barrier(group),
    ];
    for refused in 0..calls.len() {
        let two = ranks();
        for (at, calls) in calls.into_iter().enumerate() {
            for _ in 0..3 {
                if at == refused {
                    next_launches("x");
                    let error = made(&two[0], calls).expect_err("a refusal");
                    assert!(error.fault().is_none() && error.to_string().contains("cuLaunch"), "{error}");
                }
                two.iter().for_each(|rank| made(rank, calls).unwrap_or_else(|error| panic!("{at}: {error}")));
            }
        }
        let ends = finalize(two);
        assert!(ends.iter().all(Option::is_none), "{refused}: {ends:?}");
    }
}

/// Refused for rank 0, which goes on without it.
fn left_out() {
    let two = ranks();
    next_launches("x");
    made(&two[0], |rank, group| rank.send(group, 8)).expect_err("a refusal");
    made(&two[1], |rank, group| rank.recv(group, 8)).expect("a receive");
    for error in finalize(two) {
        let error = error.expect("a message without its send");
        let Some(Fault::MessagesDiffer { sender, receiver, sent: 1, received: 2, more: 0, .. }) =
            error.fault()
        else {
            panic!("{error}")
        };
        assert_eq!((sender.0, receiver.0), (0, 1));
    }
    let two = ranks();
    next_launches("x");
    made(&two[0], |rank, group| rank.all_reduce(group, 8)).expect_err("a refusal");
    made(&two[1], |rank, group| rank.all_reduce(group, 8)).expect("an all-reduce");
    for (me, error) in (0..).zip(finalize(two)) {
        let error = error.expect("a collective that one rank did not make");
        let Some(Fault::CallsDiffer { rank, theirs, .. }) = error.fault() else { panic!("{error}") };
        assert_eq!((rank.0, theirs.map(|theirs| theirs.seq)), (1 - me, (me == 0).then_some(1)), "{error}");
    }
}

/// A message that nobody receives.
fn lost() {
    let two = ranks();
    made(&two[0], |rank, group| rank.send(group, 8)).expect("a send");
    for error in finalize(two) {
        let said = error.expect("a message that nobody received").to_string();
        assert!(said.contains("rank 0's send of 8 float to rank 1: every send needs its receive"), "{said}");
    }
}

/// A part of a group is there when the rest is refused: to repeat the group would send that part twice.
fn in_part() {
    let groups: [Calls; 2] = [
        |rank, group| {
            rank.all_reduce(group, 16)?;
            rank.all_reduce(group, 16)
        },
        |rank, group| {
            rank.all_reduce(group, 16)?;
            rank.exchange(group)
        },
    ];
    for calls in groups {
        let two = ranks();
        next_launches(".x");
        made(&two[0], calls).expect_err("a refusal");
        let again = made(&two[0], calls).expect_err("a failed communicator");
        assert!(matches!(again.fault(), Some(Fault::Gpu { .. })), "{again}");
        assert!(
            again.to_string().contains("the driver refused a part of what other ranks wait for"),
            "{again}"
        );
        assert!(finalize(two).iter().all(Option::is_some));
    }
}

const PROGRAMS: [(&str, fn()); 4] =
    [("repeated", repeated), ("left_out", left_out), ("lost", lost), ("in_part", in_part)];

/// Runs a program of the list in a process of its own.
fn run(name: &str) {
    if let Some(wanted) = std::env::var_os(CHILD) {
        let (_, program) = PROGRAMS.iter().find(|(name, _)| wanted == **name).expect("a program");
        return program();
    }
    let folder = tempfile::tempdir().unwrap();
    let driver = FakeDriver::make(folder.path());
    let bundle = driver.kernels(true);
    let mut child = Command::new(std::env::current_exe().unwrap());
    let test = format!("refused_launches::launches_{name}");
    child.args(["--exact", &test, "--nocapture"]).env(CHILD, name);
    let output = driver.under(&mut child).env("OXCCL_PTX_PATH", bundle).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{said}");
}

#[test]
fn launches_repeated() {
    run("repeated");
}

#[test]
fn launches_left_out() {
    run("left_out");
}

#[test]
fn launches_lost() {
    run("lost");
}

#[test]
fn launches_in_part() {
    run("in_part");
}
