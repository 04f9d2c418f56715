//! What a program can tell its calls by: the tag that it has given them, the stream that they are on, and when the GPU ran them.
//!
//! Ranks on GPUs run over a driver without a GPU, in a process of its own.

use oxccl::cuda::{DeviceMemory, Stream};
use oxccl::{Config, DeviceCommunicator, DeviceSliceMut, ReduceOp, device_group};
use oxccl_tests::fake_driver::FakeDriver;
use std::process::Command;

const CHILD: &str = "OXCCL_TEST_MARKS";

fn on_two_streams() {
    let config = Config::from_env().expect("a valid environment");
    let comms = DeviceCommunicator::init_all_with(&[0, 1], &config).expect("two ranks");
    let streams = |comm: &DeviceCommunicator| [(); 2].map(|()| Stream::new(comm.device()).expect("a stream"));
    let ranks: Vec<_> = comms
        .into_iter()
        .map(|comm| (streams(&comm), DeviceMemory::zeroed(comm.device(), 64).expect("memory"), comm))
        .collect();
    for (call, tag) in [(0, 0), (1, 9), (0, u64::MAX)] {
        let calls = device_group(|group| {
            ranks.iter().try_for_each(|(streams, memory, comm)| {
                comm.handle().tag(tag);
                // SAFETY: (1, 2) the memory has 16 elements, the driver's kernels do nothing with it; it and the streams live on.
                unsafe {
                    let buffer = DeviceSliceMut::<f32>::from_raw(memory.address(), 16);
                    group.all_reduce_in_place(comm, buffer, ReduceOp::SUM, streams[call].by_ref())
                }
            })
        });
        calls.unwrap_or_else(|error| panic!("{error}"));
    }
    for (streams, _, comm) in &ranks {
        let [first, second] = streams.each_ref().map(|stream| Some(stream.by_ref().raw().addr() as u64));
        let recent = comm.handle().report(8).recent;
        let marks: Vec<_> =
            recent.iter().map(|record| (record.operation.tag, record.operation.stream)).collect();
        assert_eq!(marks, [(None, first), (Some(9), second), (Some(u64::MAX), first)]);
        streams.iter().for_each(|stream| stream.synchronize().expect("its work ends"));
        let recent = comm.handle().report(8).recent;
        let times = recent.iter().map(|record| (record.began_ns, record.started_ns, record.ended_ns));
        for (enqueued, started, ended) in times {
            let (Some(started), Some(ended)) = (started, ended) else { panic!("{recent:#?}") };
            // The clocks of the GPU and of the host meet within what a busy machine may take for it.
            assert!(started + 1_000_000_000 > enqueued && ended >= started, "{recent:#?}");
        }
        let in_order = |pair: &[oxccl::status::RecordReport]| pair[0].started_ns <= pair[1].started_ns;
        assert!(recent.windows(2).all(in_order), "{recent:#?}");
    }
}

#[test]
fn calls_on_gpus_have_their_stream_and_the_callers_tag() {
    if std::env::var_os(CHILD).is_some() {
        return on_two_streams();
    }
    let folder = tempfile::tempdir().unwrap();
    let driver = FakeDriver::make(folder.path());
    let bundle = driver.kernels(true);
    let mut child = Command::new(std::env::current_exe().unwrap());
    let test = "marks::calls_on_gpus_have_their_stream_and_the_callers_tag";
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env("OXCCL_FLIGHT_TIMES", "1");
    let output = driver.under(&mut child).env("OXCCL_PTX_PATH", bundle).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{said}");
}
