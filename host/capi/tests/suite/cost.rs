//! What a call through the C interface costs on the host beyond the same call of the library.

use super::fake;
use super::programs::library_folder;
use libloading::Library;
use oxccl::cuda::{Stream, StreamRef};
use oxccl::{Config, DataType, DeviceCommunicator, Func, Untyped, device_group};
use std::ffi::{c_int, c_void};
use std::process::Command;
use std::time::Instant;

const CHILD: &str = "OXCCL_COST_CHILD";
/// Calls of a sample, and samples.
const CALLS: u32 = 20_000;
const SAMPLES: usize = 31;
/// Calls of a group.
const GROUP: u32 = 8;

type Raw = *mut c_void;
type AllReduce = unsafe extern "C" fn(*const c_void, Raw, usize, c_int, c_int, Raw, Raw) -> c_int;

/// The functions in use of the shared library.
struct C {
    all_reduce: AllReduce,
    start: unsafe extern "C" fn() -> c_int,
    end: unsafe extern "C" fn() -> c_int,
    comm: Raw,
    _library: Library,
}

impl C {
    fn open() -> C {
        let path = library_folder().join("libnccl.so.2");
        // SAFETY: the library's own initialisers ask for nothing.
        let library = unsafe { Library::new(path) }.unwrap();
        type InitAll = unsafe extern "C" fn(*mut Raw, c_int, *const c_int) -> c_int;
        // SAFETY: the types are those of NCCL's header.
        let (all_reduce, start, end, init) = unsafe {
            let init = *library.get::<InitAll>(b"ncclCommInitAll\0").unwrap();
            let all_reduce = *library.get(b"ncclAllReduce\0").unwrap();
            (
                all_reduce,
                *library.get(b"ncclGroupStart\0").unwrap(),
                *library.get(b"ncclGroupEnd\0").unwrap(),
                init,
            )
        };
        let mut comm = std::ptr::null_mut();
        // SAFETY: `comm` takes one handle.
        assert_eq!(unsafe { init(&mut comm, 1, std::ptr::null()) }, 0);
        C { all_reduce, start, end, comm, _library: library }
    }

    fn all_reduce(&self, buffer: &mut [f32], stream: StreamRef<'_>) {
        let to: Raw = buffer.as_mut_ptr().cast();
        // SAFETY: in place, within the buffer; the driver has done the work when it returns.
        let code = unsafe { (self.all_reduce)(to, to, buffer.len(), 7, 0, self.comm, stream.raw().cast()) };
        assert_eq!(code, 0);
    }
}

fn nanoseconds(calls: u32, mut body: impl FnMut()) -> f64 {
    let started = Instant::now();
    for _ in 0..calls {
        body();
    }
    started.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Prints the medians of what both cost, in turns.
fn compare(name: &str, per: u32, mut rust: impl FnMut(), mut c: impl FnMut()) {
    let mut both = [Vec::new(), Vec::new()];
    for _ in 0..SAMPLES {
        both[0].push(nanoseconds(CALLS / per, &mut rust) / f64::from(per));
        both[1].push(nanoseconds(CALLS / per, &mut c) / f64::from(per));
    }
    let least = both.each_ref().map(|samples| samples.iter().copied().fold(f64::MAX, f64::min));
    let [rust, c] = both.each_mut().map(|samples| median(samples));
    println!(
        "{name}: Rust {rust:.0} ns (least {:.0}), C {c:.0} ns (least {:.0}), more by {:.0} ns (by least {:.0})",
        least[0],
        least[1],
        c - rust,
        least[1] - least[0]
    );
}

/// In the child: an in-place all-reduce of a rank that is alone, in which the driver has only order to keep.
fn measure() {
    let comm = DeviceCommunicator::init_all_with(&[0], &Config::from_env().unwrap()).unwrap().remove(0);
    let stream = Stream::new(comm.device()).unwrap();
    let on = stream.by_ref();
    let (c, mut ours, mut theirs) = (C::open(), vec![0f32; 256], vec![0f32; 256]);
    let to = ours.as_mut_ptr().cast();
    let call =
        Untyped { send: to, recv: to, count: ours.len(), ..Untyped::new(Func::AllReduce, DataType::F32) };
    compare(
        "one call",
        1,
        // SAFETY: as in `C::all_reduce`.
        || unsafe { comm.enqueue_untyped(&call, on) }.unwrap(),
        || c.all_reduce(&mut theirs, on),
    );
    compare(
        "a call of a group of eight",
        GROUP,
        || {
            device_group(|group| {
                // SAFETY: as above.
                (0..GROUP).try_for_each(|_| unsafe { group.add_untyped(&comm, &call, on) })
            })
            .unwrap();
        },
        || {
            // SAFETY: it takes nothing.
            assert_eq!(unsafe { (c.start)() }, 0);
            (0..GROUP).for_each(|_| c.all_reduce(&mut theirs, on));
            // SAFETY: as above.
            assert_eq!(unsafe { (c.end)() }, 0);
        },
    );
}

#[test]
#[ignore = "a measurement: run it alone, built with --release"]
fn host_cost_of_a_call() {
    if std::env::var_os(CHILD).is_some() {
        return measure();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "cost::host_cost_of_a_call", "--ignored", "--nocapture"]).env(CHILD, "1");
    assert!(fake::driver().under(&mut child).status().unwrap().success());
}
