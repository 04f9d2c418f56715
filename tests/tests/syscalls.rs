//! Two processes over shared memory all-reduce without the operating system.
//!
//! Each process warms up and then forbids its thread every system call by a seccomp filter. A call that only gives the
//! processor away (it is what a rank does whose peer is not running) is counted and skipped; any other ends the process by
//! name. The library's other threads must not have run meanwhile.
//!
//! Bounds, for 10,000 all-reduces of 8 bytes: no call but `sched_yield` and `clock_nanosleep`, ever; in the quietest 10,000
//! of a million, at most 10 of those. On a busy machine ranks wait for each other's processor, so all the rest proves less.
#![cfg(target_os = "linux")]

use oxccl::{Communicator, ReduceOp, TransportKind, UniqueId};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::Settings;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const NAME: &str = "an_all_reduce_over_shared_memory_makes_no_system_call";
const RANK: &str = "OXCCL_TEST_SYSCALLS_RANK";
const ID: &str = "OXCCL_TEST_SYSCALLS_ID";
const RANKS: u32 = 2;
const BATCHES: usize = 100;
const BATCH: usize = 10_000;
const QUIET_MAX: u64 = 10;
/// What the library's monitor may do in all that time.
const SWITCHES_MAX: u64 = 50;

/// A process that ends with the test, however that ends.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has noticed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_all_reduce_over_shared_memory_makes_no_system_call() {
    match std::env::var(RANK) {
        Ok(rank) => be_rank(rank.parse().expect("a rank")),
        Err(_) => watch_ranks(),
    }
}

fn watch_ranks() {
    let _deadline = Deadline::start(NAME, Duration::from_secs(200));
    let config = Settings::default().config();
    let id = UniqueId::create(&config.bootstrap).expect("a root on the loopback interface");
    let spawn = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().expect("this test's path"));
        command.args(["--exact", NAME, "--nocapture"]).env(RANK, rank.to_string());
        Rank(command.env(ID, id.to_string()).stdout(Stdio::piped()).spawn().expect("this test again"))
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(spawn).collect();
    let mut lines: Vec<_> =
        ranks.iter_mut().map(|rank| BufReader::new(rank.0.stdout.take().expect("a pipe")).lines()).collect();
    let mut line = |rank: usize, key: &str| {
        let mut seen = Vec::new();
        for line in lines[rank].by_ref().map_while(Result::ok) {
            if let Some(found) = line.strip_prefix(key) {
                return found.to_owned();
            }
            seen.push(line);
        }
        panic!("rank {rank} ended before it said '{key}': {seen:#?}");
    };
    (0..2).for_each(|rank| drop(line(rank, "filtered")));
    let before: Vec<u64> = ranks.iter().map(other_threads_switches).collect();
    let least: Vec<u64> = (0..2).map(|rank| line(rank, "least ").parse().expect("a number")).collect();
    let after: Vec<u64> = ranks.iter().map(other_threads_switches).collect();
    println!(
        "calls that give the processor away, in the quietest {BATCH} all-reduces of each rank: {least:?}"
    );
    println!("times that another thread of the process ran: {before:?} before, {after:?} after");
    assert!(least.iter().all(|least| *least <= QUIET_MAX), "{least:?} of {BATCH}");
    for (before, after) in before.iter().zip(&after) {
        assert!(after - before <= SWITCHES_MAX, "a thread of the library ran {} times", after - before);
    }
}

/// How often the process's threads, but for the one that is a rank, have given up or lost the processor.
fn other_threads_switches(rank: &Rank) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", rank.0.id())).expect("the rank's threads");
    let mut switches = 0;
    for task in tasks.flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        // The filter marks the thread that is the rank.
        if status.lines().any(|line| line.starts_with("Seccomp:\t2")) {
            continue;
        }
        let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
        switches += counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum::<u64>();
    }
    switches
}

fn be_rank(rank: u32) {
    let _deadline = Deadline::start("a rank of the above", Duration::from_secs(180));
    let id: UniqueId = std::env::var(ID).expect("an id").parse().expect("an id");
    let config = Settings { transport: Some(TransportKind::Shm), ..Settings::default() }.config();
    let communicator = Communicator::builder().unique_id(id).rank(rank).ranks(RANKS).config(config);
    let communicator = communicator.build().expect("both ranks join");
    let mut data = [1.0f32, 0.0];
    let mut batch = || {
        let before = GIVEN_AWAY.load(Ordering::Relaxed);
        for _ in 0..BATCH {
            communicator.all_reduce_in_place(&mut data, ReduceOp::MAX).expect("the other rank does the same");
        }
        GIVEN_AWAY.load(Ordering::Relaxed) - before
    };
    batch();
    filter::install();
    say(format_args!("filtered\n"));
    let least = (0..BATCHES).map(|_| batch()).min().expect("there is a batch");
    say(format_args!("least {least}\n"));
    // If this rank ended, the other would be told so in its last operation.
    filter::sleep_for_ever();
}

/// Calls that gave the processor away.
static GIVEN_AWAY: AtomicU64 = AtomicU64::new(0);

/// Prints without a lock or an allocation, which may need system calls.
fn say(text: std::fmt::Arguments<'_>) {
    let mut buffer = [0u8; 128];
    let mut rest = &mut buffer[..];
    rest.write_fmt(text).expect("a short line");
    let len = 128 - rest.len();
    filter::write(&buffer[..len]);
}

/// A filter on the system calls of a thread, by which each becomes a signal.
mod filter {
    use super::{GIVEN_AWAY, Ordering, say};
    use libc::{
        SYS_clock_nanosleep, SYS_exit_group, SYS_ppoll, SYS_rt_sigreturn, SYS_sched_yield, SYS_write,
    };
    use libc::{c_int, c_long, c_void, siginfo_t, sock_filter, sock_fprog};

    /// What the test itself needs.
    const ALLOWED: [c_long; 4] = [SYS_rt_sigreturn, SYS_write, SYS_exit_group, SYS_ppoll];

    /// Where Linux puts the number of the call in the signal's description (`si_syscall`, after `si_call_addr`).
    const SYSCALL_OFFSET: usize = if cfg!(target_pointer_width = "64") { 24 } else { 16 };

    extern "C" fn caught(_signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: Linux fills in this field for the signal of a filter.
        let number = unsafe { *info.cast::<u8>().add(SYSCALL_OFFSET).cast::<c_int>() };
        if [SYS_sched_yield, SYS_clock_nanosleep].contains(&c_long::from(number)) {
            GIVEN_AWAY.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the context is that of the interrupted thread, whose registers it restores on return.
            unsafe { succeed(&mut *context.cast()) };
            return;
        }
        say(format_args!("system call {number} was made by an all-reduce\n"));
        // SAFETY: ends the process without running anything else.
        unsafe { libc::_exit(3) };
    }

    /// Makes the call that was skipped return 0. Otherwise it would return its own number, and `std`'s sleep panics on a result
    /// that is neither success nor an interruption.
    fn succeed(context: &mut libc::ucontext_t) {
        #[cfg(target_arch = "x86_64")]
        {
            context.uc_mcontext.gregs[libc::REG_RAX as usize] = 0;
        }
        #[cfg(target_arch = "aarch64")]
        {
            context.uc_mcontext.regs[0] = 0;
        }
    }

    /// Forbids this thread every system call but those that the test needs.
    pub fn install() {
        let jump = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let mut program = vec![jump(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
        for (i, number) in ALLOWED.iter().enumerate() {
            let skip = (ALLOWED.len() - i) as u8;
            program.push(jump(equal, *number as u32, skip, 0));
        }
        program.push(jump(libc::BPF_RET, libc::SECCOMP_RET_TRAP, 0, 0));
        program.push(jump(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0, 0));
        let program = sock_fprog { len: program.len() as u16, filter: program.leak().as_mut_ptr() };
        // SAFETY: the action is whole, and the handler does only what a signal handler may: atomics, write, _exit.
        let caught = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = caught as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut())
        };
        assert_eq!(caught, 0);
        // SAFETY: takes rights away from this thread and touches no memory.
        let unprivileged = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        assert_eq!(unprivileged, 0);
        // SAFETY: the program is valid and stays.
        let filtered = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
        assert_eq!(filtered, 0, "this kernel has no seccomp filters: {}", std::io::Error::last_os_error());
    }

    /// To standard output.
    pub fn write(bytes: &[u8]) {
        // SAFETY: the bytes are valid. A short or failed write shows as a line that never comes.
        unsafe { libc::write(1, bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Until somebody kills the process.
    pub fn sleep_for_ever() -> ! {
        loop {
            // SAFETY: no descriptors, no time, no mask.
            unsafe { libc::syscall(SYS_ppoll, 0usize, 0usize, 0usize, 0usize, 0usize) };
        }
    }
}
